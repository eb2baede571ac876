package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// servedTimeout is how long Apply waits for a kind that is not served yet.
const servedTimeout = 30 * time.Second

// objects applies objects whose kinds it learns from the API server.
type objects struct {
	discovery *discovery.DiscoveryClient
	dynamic   *dynamic.DynamicClient
	kinds     meta.RESTMapper
}

// with calls fn with the objects of the cluster.
func (c *Cluster) with(tb testing.TB, fn func(ctx context.Context, o *objects) error) {
	tb.Helper()
	client, err := c.client()
	if err != nil {
		tb.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	o := &objects{}
	if o.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(c.Config(), client); err != nil {
		tb.Fatal(err)
	}
	if o.dynamic, err = dynamic.NewForConfigAndClient(c.Config(), client); err != nil {
		tb.Fatal(err)
	}
	if err := fn(tb.Context(), o); err != nil {
		tb.Fatalf("cluster %s: %v", c.name, err)
	}
}

// Apply writes the objects of the YAML documents by server-side apply, in
// their order, and their status too where they have one. An object without a
// namespace goes to "default". The kinds of a CustomResourceDefinition may
// follow it at once.
func (c *Cluster) Apply(tb testing.TB, documents string) {
	tb.Helper()
	c.with(tb, func(ctx context.Context, o *objects) error {
		decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(documents), 4<<10)
		for {
			var object unstructured.Unstructured
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if len(object.Object) == 0 {
				continue // between two separators
			}
			if err := o.apply(ctx, &object); err != nil {
				return fmt.Errorf("apply %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
			}
		}
	})
}

func (o *objects) apply(ctx context.Context, object *unstructured.Unstructured) error {
	kind, err := o.kind(ctx, object)
	if err != nil {
		return err
	}
	var client dynamic.ResourceInterface = o.dynamic.Resource(kind.Resource)
	if kind.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		client = o.dynamic.Resource(kind.Resource).Namespace(object.GetNamespace())
	}
	options := metav1.ApplyOptions{FieldManager: "meshctl-test", Force: true}
	_, err = client.Apply(ctx, object.GetName(), object, options)
	if _, ok := object.Object["status"]; ok && err == nil {
		_, err = client.ApplyStatus(ctx, object.GetName(), object, options)
	}
	return err
}

// kind returns how the API server serves the object's kind, and waits until
// it does.
func (o *objects) kind(ctx context.Context, object *unstructured.Unstructured) (*meta.RESTMapping, error) {
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	gvk := object.GroupVersionKind()
	for {
		if o.kinds != nil {
			mapping, err := o.kinds.RESTMapping(gvk.GroupKind(), gvk.Version)
			if !meta.IsNoMatchError(err) {
				return mapping, err
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return nil, err
			}
		}
		groups, err := restmapper.GetAPIGroupResources(o.discovery)
		if err != nil {
			return nil, err
		}
		o.kinds = restmapper.NewDiscoveryRESTMapper(groups)
	}
}

// Namespace makes a namespace of the test's own and returns its name, prefix
// and a number. It is deleted when the test ends.
func (c *Cluster) Namespace(tb testing.TB, prefix string) string {
	tb.Helper()
	name := fmt.Sprintf("%s-%d", prefix, c.namespaces.Add(1))
	c.Apply(tb, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	tb.Cleanup(func() {
		client, err := c.client()
		if err != nil {
			tb.Error(err)
			return
		}
		defer utilnet.CloseIdleConnectionsFor(client.Transport)
		ctx := context.WithoutCancel(tb.Context())
		if err := request(ctx, client, http.MethodDelete, "https://"+c.api.addr+"/api/v1/namespaces/"+name); err != nil {
			tb.Logf("namespace %s of cluster %s stays: %v", name, c.name, err)
		}
	})
	return name
}

// Kubectl runs kubectl as a user of Kubeconfig would, and returns what it
// writes to stdout. It fails the test when kubectl fails.
func (c *Cluster) Kubectl(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	out, err := c.kubectl(tb, stdin, args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func (c *Cluster) kubectl(tb testing.TB, stdin string, args ...string) (string, error) {
	if slices.Contains(args, "-f") && (args[0] == "apply" || args[0] == "create") {
		// Otherwise kubectl first asks for the schemas of all kinds, and ends if they take 32 s.
		args = append(slices.Clip(args), "--validate=false")
	}
	cmd := exec.CommandContext(tb.Context(), filepath.Join(c.bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.path("kubeconfig"), "KUBECACHEDIR="+c.path("cache"))
	cmd.Stdin = strings.NewReader(stdin)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, talk.String())
	}
	return out.String(), nil
}
