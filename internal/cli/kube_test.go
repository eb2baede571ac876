package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/meshctl/meshctl/test/kube"
)

// TestKubeStories runs testdata/kube/*.txtar: stories with kubectl and a
// kubeconfig of the contexts cluster1 and cluster2. All share the clusters; in
// both of them, $NS is a namespace of the story's own.
func TestKubeStories(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	config := mergedKubeconfig(t, one, two)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/kube",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir+"/home")
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv("XDG_STATE_HOME", "")
			env.Setenv("PATH", kube.Bin(t)+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("KUBECONFIG", config)
			ns := one.Namespace(t, "story")
			two.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+ns+"}}")
			env.Setenv("NS", ns)
			return nil
		},
		RequireUniqueNames: true,
		Cmds:               map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitcode, "followhint": followHint},
	})
}

// mergedKubeconfig writes a kubeconfig with the contexts of all clusters.
func mergedKubeconfig(t *testing.T, clusters ...*kube.Cluster) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	for _, c := range clusters {
		one, err := clientcmd.Load(c.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		name := c.Name()
		all.Clusters[name], all.AuthInfos[name], all.Contexts[name] = one.Clusters[name], one.AuthInfos[name], one.Contexts[name]
	}
	all.CurrentContext = clusters[0].Name()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*all, path); err != nil {
		t.Fatal(err)
	}
	return path
}
