package multicluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// TestChangeSettings: concurrent changes of the settings are all kept.
func TestChangeSettings(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a Kubernetes API")
	}
	api := testkube.Shared(t, "own")
	namespace := api.Namespace(t, "system")
	c, err := Connect(&kube.Access{Config: api.Config(), Context: "own"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, id := range []mesh.ClusterID{"c2", "c3", "c4"} {
		wg.Go(func() {
			err := c.ChangeSettings(ctx, namespace, func(s mesh.ClusterSettings) {
				setting := s[id]
				setting.Drain = true
				s[id] = setting
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := c.ChangeSettings(ctx, namespace, func(s mesh.ClusterSettings) { delete(s, "c3") }); err != nil {
		t.Fatal(err)
	}
	client, err := kube.NewClient(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.ConfigMaps(namespace).Get(ctx, clustersettings.ConfigMap)
	if err != nil {
		t.Fatal(err)
	}
	if text, want := got.Data[clustersettings.Key], "clusters:\n  c2:\n    drain: true\n  c4:\n    drain: true\n"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
}
