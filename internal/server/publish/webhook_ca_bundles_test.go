package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// remoteReader returns the access of the account of remote secrets in a cluster, and with
// write the role that lets the control plane of another cluster write there.
func remoteReader(t *testing.T, c *testkube.Cluster, write bool) *rest.Config {
	t.Helper()
	account := create.Account{Namespace: "istio-system", Name: "istio-reader-service-account"}
	objects := create.Scope{Style: create.Minimal}.Objects(account)
	if write {
		objects = append(objects, create.RemoteWriter(account, "istiod-remote", []string{"istio-sidecar-injector"})...)
	}
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		c.Apply(t, string(text))
	}
	answer, err := apiOf(t, c).CreateToken(t.Context(), account.Namespace, account.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}})
	if err != nil {
		t.Fatal(err)
	}
	access := rest.AnonymousClientConfig(c.Config())
	access.BearerToken = answer.Status.Token
	return access
}

// TestWebhooksOfRemoteCluster: a control plane writes the roots of the mesh to the injector
// of its revision in another cluster, and to every namespace, if the system namespace there
// permits it and the account has the role. It does not touch validations and webhooks of
// others.
func TestWebhooksOfRemoteCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	remote := testkube.Start(t)
	hooks := func(kind, name, labels, policy string) string {
		return fmt.Sprintf(`---
apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: %s, labels: {%s}}
webhooks:
- name: rev.namespace.sidecar-injector.istio.io
  clientConfig: {service: {name: istiod, namespace: istio-system, path: /inject/cluster/remote}}
  namespaceSelector: {matchLabels: {a: b}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  failurePolicy: %s
  sideEffects: None
  admissionReviewVersions: [v1]
`, kind, name, labels, policy)
	}
	const own, injector = "app.kubernetes.io/managed-by: meshctl, istio.io/rev: ", "MutatingWebhookConfiguration"
	remote.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system}\n"+
		hooks(injector, "istio-sidecar-injector", own+"default", "Fail")+
		hooks(injector, "istio-sidecar-injector-canary", own+"canary", "Fail")+
		hooks(injector, "other", "istio.io/rev: default", "Fail")+
		hooks("ValidatingWebhookConfiguration", "istio-validator-istio-system", own+"default", "Ignore"))
	remote.Namespace(t, "apps")

	var roots atomic.Pointer[[]byte]
	set := func(text string) { roots.Store(new([]byte(text))) }
	set("first")
	var written atomic.Int32
	w := NewWebhooks(WebhooksConfig{
		Cluster: "own", SystemNamespace: "istio-system", Revision: "default", Roots: func() []byte { return *roots.Load() },
		Serving: func() bool { return true }, Interval: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Written: func(id mesh.ClusterID, result string) {
			if id == "remote" && result == Updated {
				written.Add(1)
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	bundle := func(kind, name string) string {
		return remote.Kubectl(t, "", "get", kind, name, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
	}
	is := func(want string) func() error {
		return func() error {
			if got := bundle(injector, "istio-sidecar-injector"); got != want {
				return fmt.Errorf("the bundle is %q, want %q", got, want)
			}
			return nil
		}
	}
	invite := func(clusters string) {
		remote.Kubectl(t, "", "annotate", "--overwrite", "namespace", "istio-system", "topology.istio.io/controlPlaneClusters="+clusters)
	}
	setAccess := func(id mesh.ClusterID, access *rest.Config) {
		t.Helper()
		if err := w.SetCluster(id, access); err != nil {
			t.Fatal(err)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts nothing, and delays no other cluster
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	away := rest.CopyConfig(remote.Config())
	away.Host = "https://" + silent.Addr().String()
	setAccess("away", away)

	// Without the role the fault is reported.
	invite("own")
	setAccess("remote", remoteReader(t, remote, false))
	until(t, "the missing right is reported", func() error {
		if got := w.Problems()["remote"]; !strings.Contains(got, "forbidden") {
			return fmt.Errorf("problem %q", got)
		}
		return nil
	})
	// Without permission of the cluster nothing is written.
	invite("another")
	access := remoteReader(t, remote, true)
	setAccess("remote", access)
	until(t, "there is no problem", func() error {
		if got := w.Problems()["remote"]; got != "" {
			return errors.New(got)
		}
		return nil
	})
	if n := written.Load(); n != 0 {
		t.Errorf("%d writes without permission", n)
	}
	invite("another, own")
	until(t, "the roots are written", is("Zmlyc3Q=")) // first
	set("second")
	until(t, "the new roots are written", is("c2Vjb25k"))
	for _, o := range [][2]string{{injector, "istio-sidecar-injector-canary"}, {injector, "other"}, {"ValidatingWebhookConfiguration", "istio-validator-istio-system"}} {
		if got := bundle(o[0], o[1]); got != "" {
			t.Errorf("%s %s got the roots %q", o[0], o[1], got)
		}
	}

	// The same account may write the ConfigMaps of pods.
	r := start(t, remote, "own", "a", "istio-system")
	r.roots.SetRoots([]byte("second"))
	r.setCluster(t, "remote", access)
	until(t, "all namespaces have the roots", func() error { return apiOf(t, remote).checkAll("second") })

	w.RemoveCluster("remote")
	set("third")
	if err := is("c2Vjb25k")(); err != nil {
		t.Error(err)
	}
}
