package replicas

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// The Leases of replicas.
const (
	leasePrefix = "meshctl-replica-"
	leaseLabel  = "meshctl.io/replica"
	// LeaseSelector selects the Leases of replicas.
	LeaseSelector = leaseLabel + "=true"

	// AnnotationPod holds the pod of the replica as namespace/name, "" outside of pods.
	AnnotationPod       = "meshctl.io/pod"
	annotationCluster   = "meshctl.io/cluster"
	annotationAddresses = "meshctl.io/status-addresses"
	annotationClusters  = "meshctl.io/clusters"
)

const (
	// A replica renews its Lease every renewEvery. Without renewal it counts as gone after
	// lifetime, and another replica deletes the Lease after forgetAfter.
	renewEvery  = 10 * time.Second
	lifetime    = 40 * time.Second
	forgetAfter = time.Hour
	// maxDigest bounds the clusters in a Lease, maxAddresses the addresses, maxName each
	// name, in bytes.
	maxDigest    = 500
	maxAddresses = 8
	maxName      = 253
)

// Announcement is what a replica announces in its Lease.
type Announcement struct {
	Replica string         `json:"replica"`
	Cluster mesh.ClusterID `json:"cluster,omitzero"`
	// Pod is the pod of the replica as namespace/name, empty outside of pods.
	Pod string `json:"pod,omitzero"`
	// Addresses are the addresses of its status pages, ip:port.
	Addresses []string `json:"addresses,omitzero"`
	// Clusters are the clusters that it reads, Left counts those that did not fit.
	Clusters []ClusterDigest `json:"clusters,omitzero"`
	Left     int             `json:"left,omitzero"`
	// Renewed is the time of the last renewal.
	Renewed time.Time `json:"renewed,omitzero"`
}

// ClusterDigest is the state of one cluster at a replica.
type ClusterDigest struct {
	ID         mesh.ClusterID `json:"id"`
	State      string         `json:"state"`
	Credential string         `json:"credential,omitzero"`
}

// digest is the annotation with the clusters.
type digest struct {
	Clusters []ClusterDigest `json:"clusters"`
	Left     int             `json:"left,omitzero"`
}

// leaseName returns the name of the Lease of a replica. It keeps the end of a long
// name, which distinguishes replicas.
func leaseName(replica string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, replica)
	if most := maxName - len(leasePrefix); len(name) > most {
		name = name[len(name)-most:]
	}
	return leasePrefix + strings.Trim(name, "-")
}

func (a *Announcement) lease(namespace string) (*coordinationv1.Lease, error) {
	d := digest{Clusters: a.Clusters, Left: a.Left}
	if over := len(d.Clusters) - maxDigest; over > 0 {
		d.Clusters, d.Left = d.Clusters[:maxDigest], d.Left+over
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: leaseName(a.Replica),
			Labels: map[string]string{leaseLabel: "true", "app.kubernetes.io/managed-by": "meshctl"},
			Annotations: map[string]string{
				AnnotationPod: a.Pod, annotationCluster: string(a.Cluster), annotationClusters: string(text),
				annotationAddresses: strings.Join(a.Addresses[:min(len(a.Addresses), maxAddresses)], ","),
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(a.Replica), LeaseDurationSeconds: new(int32(lifetime.Seconds())),
			RenewTime: new(metav1.NewMicroTime(a.Renewed)),
		},
	}, nil
}

// announcementOf reads a Lease. Everyone with write access may have written it, so
// values that no replica writes are dropped.
func announcementOf(l *coordinationv1.Lease) (*Announcement, error) {
	if l.Spec.HolderIdentity == nil || !printable(*l.Spec.HolderIdentity) {
		return nil, fmt.Errorf("the Lease %s/%s names no replica", l.Namespace, l.Name)
	}
	a := &Announcement{Replica: *l.Spec.HolderIdentity}
	if l.Spec.RenewTime != nil {
		a.Renewed = l.Spec.RenewTime.Time
	}
	if id := l.Annotations[annotationCluster]; printable(id) {
		a.Cluster = mesh.ClusterID(id)
	}
	// The pod must be in the namespace of the Lease, so that no Lease leads elsewhere.
	if name, ok := strings.CutPrefix(l.Annotations[AnnotationPod], l.Namespace+"/"); ok && mesh.IsDNSName(name) {
		a.Pod = l.Annotations[AnnotationPod]
	}
	for address := range strings.SplitSeq(l.Annotations[annotationAddresses], ",") {
		if at, err := netip.ParseAddrPort(address); err == nil && at.Port() != 0 && len(a.Addresses) < maxAddresses {
			a.Addresses = append(a.Addresses, at.String())
		}
	}
	var d digest
	if text := l.Annotations[annotationClusters]; text != "" {
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			return nil, fmt.Errorf("the Lease %s/%s: annotation %s: %w", l.Namespace, l.Name, annotationClusters, err)
		}
	}
	a.Left = max(d.Left, 0)
	for _, c := range d.Clusters {
		if len(a.Clusters) < maxDigest && printable(string(c.ID)) && printable(c.State) && (c.Credential == "" || printable(c.Credential)) {
			a.Clusters = append(a.Clusters, c)
		}
	}
	return a, nil
}

// printable reports whether text may be shown as a name: not empty, bounded, ASCII.
func printable(text string) bool {
	return text != "" && len(text) <= maxName && !slices.ContainsFunc([]byte(text), func(b byte) bool { return b <= ' ' || b > '~' })
}

func (a *Announcement) port() uint16 {
	for _, address := range a.Addresses {
		if at, err := netip.ParseAddrPort(address); err == nil {
			return at.Port()
		}
	}
	return defaultPort
}

// stale reports whether the Lease was not renewed in time.
func (a *Announcement) stale(now time.Time) bool { return now.Sub(a.Renewed) > lifetime }
