package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	testkube "github.com/meshctl/meshctl/test/kube"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// until waits until ok returns nil.
func until(t *testing.T, what string, ok func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("still not: %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// replica is one replica of a control plane.
type replica struct {
	name  string
	roots *Roots
	lease *Lease
	stop  func()

	mu     sync.Mutex
	holds  bool
	counts map[string]int // "cluster result" → how many
	log    bytes.Buffer
}

func (r *replica) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

func (r *replica) count(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[key]
}

func (r *replica) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.counts {
		n += c
	}
	return n
}

func (r *replica) held() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds
}

// start runs a replica of the control plane of cluster own. Its Lease is in c.
func start(t *testing.T, c *testkube.Cluster, own mesh.ClusterID, name, system string) *replica {
	t.Helper()
	r := &replica{name: name, counts: make(map[string]int)}
	log := slog.New(slog.NewTextHandler(r, nil))
	r.roots = NewRoots(RootsConfig{
		Cluster: own, SystemNamespace: system, Now: time.Now, Log: log,
		Written: func(cluster mesh.ClusterID, result string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.counts[string(cluster)+" "+result]++
		},
	})
	lease := NewLease(LeaseConfig{
		Access: c.Config(), Namespace: system, Holder: name, Now: time.Now, Log: log,
		Duration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		Held: func(yes bool) { r.mu.Lock(); defer r.mu.Unlock(); r.holds = yes },
	})
	r.lease = lease
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lease.Run(ctx, r.roots.Run) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("replica %s ended with %v", name, err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *replica) setCluster(t *testing.T, id mesh.ClusterID, access *rest.Config) {
	t.Helper()
	if err := r.roots.SetCluster(id, access); err != nil {
		t.Fatal(err)
	}
}

type testAPI struct {
	*kube.Client
	t *testing.T
}

func apiOf(t *testing.T, c *testkube.Cluster) testAPI {
	client, err := kube.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return testAPI{client, t}
}

// check checks the ConfigMap of a namespace.
func (a testAPI) check(namespace, want string) error {
	cm, err := a.ConfigMaps(namespace).Get(a.t.Context(), RootConfigMap)
	if err != nil {
		return err
	}
	if cm.Data[RootKey] != want || cm.Labels["istio.io/config"] != "true" {
		return fmt.Errorf("namespace %s has %q, labels %v: want %q", namespace, cm.Data[RootKey], cm.Labels, want)
	}
	return nil
}

// checkAll checks every namespace except the ignored ones.
func (a testAPI) checkAll(want string) error {
	list, err := a.Namespaces().List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, ns := range list.Items {
		err := a.check(ns.Name, want)
		if ns.Name != "kube-public" && ns.Name != "kube-node-lease" {
			errs = append(errs, err)
		} else if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("namespace %s has a ConfigMap, or: %w", ns.Name, err))
		}
	}
	if len(errs) < 4 {
		errs = append(errs, fmt.Errorf("%d namespaces", len(errs))) // some come later
	}
	return errors.Join(errs...)
}

func (a testAPI) patch(namespace, patch string) {
	a.t.Helper()
	if _, err := a.ConfigMaps(namespace).Patch(a.t.Context(), RootConfigMap, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

func TestOneOfTwoReplicasKeepsTheRoots(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := testkube.Start(t)
	a := apiOf(t, c)
	system := c.Namespace(t, "system")
	apps, other := c.Namespace(t, "apps"), c.Namespace(t, "other")
	c.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: %s, name: istio-ca-root-cert, labels: {mine: "yes"}}
data: {root-cert.pem: stale, more: stays}
`, other))
	replicas := []*replica{start(t, c, "east", "a", system), start(t, c, "east", "b", system)}
	for _, r := range replicas {
		r.setCluster(t, "east", c.Config())
	}
	until(t, "one replica holds the Lease", func() error {
		if replicas[0].held() == replicas[1].held() {
			return errors.New("both or none")
		}
		return nil
	})
	if !replicas[0].held() {
		replicas[0], replicas[1] = replicas[1], replicas[0]
	}
	holder, idle := replicas[0], replicas[1]
	all := func(what, want string) {
		t.Helper()
		until(t, what, func() error { return a.checkAll(want) })
	}

	// Nothing before the roots are known.
	for _, r := range replicas {
		r.roots.SetRoots([]byte("first"))
	}
	all("all namespaces have the roots", "first")
	cm, err := a.ConfigMaps(other).Get(t.Context(), RootConfigMap)
	if err != nil || cm.Data["more"] != "stays" || cm.Labels["mine"] != "yes" {
		t.Errorf("data of other writers is gone: %+v, %v", cm, err)
	}
	a.patch(apps, `{"data":{"root-cert.pem":"evil"}}`)
	all("an edit is undone", "first")
	a.patch(apps, `{"metadata":{"labels":null},"data":null,"binaryData":{"root-cert.pem":"ZXZpbA=="}}`)
	all("binary data is undone", "first")
	if err := a.ConfigMaps(apps).Delete(t.Context(), RootConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all("a deletion is undone", "first")
	a.patch(apps, `{"immutable":true}`)
	late := c.Namespace(t, "late")
	until(t, "a new namespace has the roots", func() error { return a.check(late, "first") })
	for _, r := range replicas {
		r.roots.SetRoots([]byte("first\nsecond"))
	}
	all("new roots reach all namespaces, also where they were immutable", "first\nsecond")
	for name, r := range map[string]*replica{"holder": holder, "other": idle} {
		if st := r.lease.Status(); st.Held != (r == holder) || st.Holder != holder.name || st.Problem != "" {
			t.Errorf("%s: status %+v", name, st)
		}
	}
	if n := idle.total(); n != 0 {
		t.Errorf("the replica without the Lease wrote %d times", n)
	}
	if got := idle.roots.Status(); len(got) != 0 {
		t.Errorf("the replica without the Lease has status %+v", got)
	}
	if got := holder.roots.Status(); len(got) != 1 || !got[0].Written || got[0].Problem != "" {
		t.Errorf("status %+v", got)
	}
	if holder.count("east updated") < 3 || holder.count("east created") < 7 || holder.count("east deleted") != 1 {
		t.Errorf("counted %v", holder.counts)
	}

	// The other replica takes over, and makes up for the changes in between.
	holder.stop()
	a.patch(apps, `{"data":{"root-cert.pem":"evil"}}`)
	all("the other replica undoes an edit", "first\nsecond")
	if !idle.held() || idle.count("east updated") != 1 || holder.held() {
		t.Errorf("counted %v", idle.counts)
	}
	// A terminating namespace is ignored.
	if err := a.Namespaces().Delete(t.Context(), late, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the namespace goes", func() error {
		_, err := a.Namespaces().Get(t.Context(), late)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if got := idle.roots.Status(); len(got) != 1 || got[0].Problem != "" || idle.count("east error") != 0 {
		t.Errorf("status %+v", got)
	}
	// The API server stops and comes back.
	c.Stop(t)
	c.Restart(t)
	a = apiOf(t, c)
	a.patch(apps, `{"data":{"root-cert.pem":"evil"}}`)
	all("after the API server came back", "first\nsecond")
}

func TestRemoteClusterInvites(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	clusters := testkube.StartAll(t, "own", "remote")
	own, remote := clusters[0], clusters[1]
	for _, c := range clusters {
		c.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system}\n")
		c.Namespace(t, "apps")
	}
	r := start(t, own, "own", "a", "istio-system")
	r.roots.SetRoots([]byte("roots"))
	r.setCluster(t, "own", own.Config())
	r.setCluster(t, "remote", remote.Config())
	until(t, "the own cluster has the roots", func() error { return apiOf(t, own).checkAll("roots") })
	a := apiOf(t, remote)
	status := func(want bool) func() error {
		return func() error {
			got := r.roots.Status()
			if len(got) != 2 || got[1].Cluster != "remote" || got[1].Written != want || got[1].Problem != "" {
				return fmt.Errorf("status %+v", got)
			}
			return nil
		}
	}
	none := func(what string) {
		t.Helper()
		until(t, what, status(false))
		list, err := a.ConfigMaps("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + RootConfigMap})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("%s: %d were written, %v", what, len(list.Items), err)
		}
	}
	annotate := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"topology.istio.io/controlPlaneClusters":%s}}}`, value)
		if _, err := a.Namespaces().Patch(t.Context(), "istio-system", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	none("without the annotation")
	annotate(`"west,owner"`)
	none("other clusters are named")
	annotate(`"west, own"`)
	until(t, "the cluster is named", func() error { return a.checkAll("roots") })
	until(t, "the cluster is named", status(true))
	annotate(`null`)
	until(t, "the annotation is gone", status(false))
	if err := a.ConfigMaps("default").Delete(t.Context(), RootConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	written := r.count("remote created")
	annotate(`"*"`)
	until(t, "all may write", func() error { return a.checkAll("roots") })
	if n := r.count("remote created"); n != written+1 {
		t.Errorf("%d ConfigMaps were written without permission", n-written-1)
	}

	// A credential without permission to write is reported; a new one is used.
	r.setCluster(t, "remote", reader(t, remote))
	if err := a.ConfigMaps("default").Delete(t.Context(), RootConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the problem is told", func() error {
		got := r.roots.Status()
		if len(got) == 2 && strings.Contains(got[1].Problem, "1 namespaces lack") && strings.Contains(got[1].Problem, "forbidden") && got[1].Since != nil {
			return nil
		}
		return fmt.Errorf("status %+v", got)
	})
	r.setCluster(t, "remote", remote.Config())
	until(t, "with a credential that may write", func() error { return a.checkAll("roots") })
	until(t, "the problem is over", status(true))
	r.roots.RemoveCluster("remote")
	until(t, "the cluster is removed", func() error {
		if got := r.roots.Status(); len(got) != 1 {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
}

// reader returns a credential that may only read.
func reader(t *testing.T, c *testkube.Cluster) *rest.Config {
	t.Helper()
	c.Apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: istio-system, name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [namespaces, configmaps], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, namespace: istio-system, name: reader}]
`)
	answer, err := apiOf(t, c).CreateToken(t.Context(), "istio-system", "reader",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}})
	if err != nil {
		t.Fatal(err)
	}
	access := rest.AnonymousClientConfig(c.Config())
	access.BearerToken = answer.Status.Token
	return access
}

func TestIsRight(t *testing.T) {
	t.Parallel()
	label := map[string]string{"istio.io/config": "true", "more": "labels"}
	for name, tt := range map[string]struct {
		have *corev1.ConfigMap
		want bool
	}{
		"none":        {nil, false},
		"right":       {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: label}, Data: map[string]string{RootKey: "r", "more": "data"}}, true},
		"other roots": {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: label}, Data: map[string]string{RootKey: "s"}}, false},
		"no label":    {&corev1.ConfigMap{Data: map[string]string{RootKey: "r"}}, false},
		"empty":       {&corev1.ConfigMap{}, false},
	} {
		if got := isRight(tt.have, "r"); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestInvites(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		"": false, "*": true, "east": true, "eastern": false, "west, east": true, "west,*": true, "East": false, " ,": false, "e*": false,
	} {
		if got := invites(value, "east"); got != want {
			t.Errorf("%q: %t", value, got)
		}
	}
	if invites(" , ", "") {
		t.Error("a cluster without a name is invited")
	}
}
