package clusters

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	kubeaccess "github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// Kubernetes makes the accesses and specs of clusters with Kubernetes APIs.
type Kubernetes struct {
	// Allow has the permissions of kubeconfigs from the command line. The settings of
	// clusters add to it.
	Allow remotesecret.Allow
	// InPod is true if the control plane runs in a pod.
	InPod bool
	// IgnorePolicies is that of source.Converter.
	IgnorePolicies   bool
	SystemNamespace  string
	Revision         string // of the control plane
	SecretNamespaces []string
	Limits           kube.Limits
	// Count gets each change of an object in these APIs. May be nil.
	Count func(*source.Resource, source.Change)
	Log   *slog.Logger
	Now   func() time.Time
}

// Own returns the access to the own cluster.
func (k *Kubernetes) Own(id mesh.ClusterID, config *rest.Config) Access {
	return Access{Config: config, NewSource: func() Source {
		return &kubernetesSource{&kube.Source{
			Cluster: id, Config: config, Configuration: true, IgnorePolicies: k.IgnorePolicies, SystemNamespace: k.SystemNamespace, Revision: k.Revision,
			SecretNamespaces: k.SecretNamespaces, Limits: k.Limits, Count: k.Count, Log: k.Log, Now: k.Now,
		}}
	}}
}

// Spec returns the spec for the cluster in a remote secret or a file.
func (k *Kubernetes) Spec(c remotesecret.Cluster) Spec {
	s := Spec{ID: c.ID, Hash: c.Hash, Err: c.Err, Open: func(allow []string) (*Access, error) { return k.open(&c, allow) }}
	if c.Err != nil {
		return s
	}
	s.Credential = c.CredentialHash()
	s.TokenBegins, s.TokenEnds = c.Life()
	s.Namespaces, s.CredentialNamespaces = c.Namespaces, c.CredentialNamespaces
	return s
}

func (k *Kubernetes) open(c *remotesecret.Cluster, allow []string) (*Access, error) {
	o := remotesecret.Options{Now: k.Now(), InPod: k.InPod, Allow: maps.Clone(k.Allow)}
	if len(allow) > 0 {
		values := make([]string, len(allow))
		for i, what := range allow {
			values[i] = string(c.ID) + "=" + what
		}
		more, err := remotesecret.ParseAllow(values)
		if err != nil {
			return nil, fmt.Errorf("settings of the cluster: %w", err)
		}
		if o.Allow == nil {
			o.Allow = make(remotesecret.Allow)
		}
		o.Allow[c.ID] = slices.Concat(o.Allow[c.ID], more[c.ID])
	}
	config, err := kubeaccess.Remote(c, kubeaccess.RemoteOptions{Options: o, UserAgent: "meshctl"})
	if err != nil {
		return nil, err
	}
	a := &Access{
		Config:    config,
		NewSource: func() Source { return k.remote(c, config) },
		Close:     func() { kubeaccess.Close(config) },
	}
	for _, f := range remotesecret.Check(c, o) {
		note := fmt.Sprintf("%s: %s", f.Code, f.Reason)
		if f.Allowed {
			note = "allowed: " + note
		}
		a.Notes = append(a.Notes, note)
	}
	return a, nil
}

// Reach returns the access to the cluster of a remote secret, with the permissions in
// the settings of the cluster, as its reader has it. The caller must close it.
func (k *Kubernetes) Reach(c *remotesecret.Cluster, set mesh.ClusterSetting) (*rest.Config, error) {
	access, err := k.open(c, set.Allow)
	if err != nil {
		return nil, err
	}
	return access.Config, nil
}

// remote returns a source for the namespaces and secrets that the credential may read,
// according to the remote secret.
func (k *Kubernetes) remote(c *remotesecret.Cluster, config *rest.Config) Source {
	secrets := k.SecretNamespaces
	if c.CredentialNamespaces != nil {
		secrets = c.CredentialNamespaces
	}
	return &kubernetesSource{&kube.Source{
		Cluster: c.ID, Config: config, SystemNamespace: k.SystemNamespace, Namespaces: c.Namespaces,
		SecretNamespaces: secrets, Limits: k.Limits, Count: k.Count, Log: k.Log, Now: k.Now,
	}}
}

// kubernetesSource reads a cluster from its Kubernetes API.
type kubernetesSource struct{ *kube.Source }

// maxReported bounds the reported problems of one cluster.
const maxReported = 100

// Report implements Source. The cluster is lost if a resource that was read can no
// longer be followed. Resources that are not installed are fine. A missing permission
// for an optional resource is a problem, but no loss.
func (a *kubernetesSource) Report() Report {
	st := a.Status()
	r := Report{Version: st.Version, Faults: faultsOf(&st)}
	for i := range st.Resources {
		res := &st.Resources[i]
		if res.Heard.After(r.Heard) {
			r.Heard = res.Heard
		}
		if res.Error == "" || res.Unread {
			continue
		}
		if res.Optional && res.Cause == kube.CauseForbidden {
			continue
		}
		if r.LostSince.IsZero() || res.Since.Before(r.LostSince) {
			r.LostSince = res.Since
		}
	}
	if len(r.Faults) > 0 {
		r.Cause, r.Reason = r.Faults[0].Cause, r.Faults[0].Reason
	}
	for _, text := range st.Errors() {
		if !strings.HasPrefix(r.Reason, text) {
			r.Problems = append(r.Problems, text)
		}
	}
	var found problems
	for i := range st.Problems {
		p := &st.Problems[i]
		found.add(p.Object, p.Unenforced, p.Shared, func() string { return p.Object + ": " + strings.Join(p.Reasons, "; ") })
	}
	found.into(&r)
	return r
}

// problems are the problems of the objects of a cluster, the first of each rank.
type problems struct {
	unenforced []string    // names
	texts      [3][]string // security policies, others, objects that other programs may use
	number     [3]int
}

// add adds the problem of an object.
func (p *problems) add(object string, unenforced, shared bool, text func() string) {
	rank := 1
	switch {
	case unenforced:
		rank = 0
		if !slices.Contains(p.unenforced, object) && len(p.unenforced) < maxReported {
			p.unenforced = append(p.unenforced, object)
		}
	case shared:
		rank = 2
	}
	if p.number[rank]++; len(p.texts[rank]) < maxReported {
		p.texts[rank] = append(p.texts[rank], text())
	}
}

// into adds the problems to a report.
func (p *problems) into(r *Report) {
	r.Unenforced, r.NotUsed = p.unenforced, p.number[1]
	before := len(r.Problems)
	r.Problems = append(r.Problems, slices.Concat(p.texts[:]...)...)
	r.Problems = r.Problems[:min(len(r.Problems), maxReported)]
	if more := before + p.number[0] + p.number[1] + p.number[2] - len(r.Problems); more > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("and %d more", more))
	}
}
