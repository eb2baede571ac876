package commands

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/meshctl/meshctl/test/kube"
)

// TestKubeStories runs testdata/kube/*.txtar with kubectl and a kubeconfig of the contexts
// cluster1 and cluster2. The stories share the clusters; $NS is the namespace of a story
// in both.
func TestKubeStories(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	config := kube.MergedKubeconfig(t, one, two)
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
		Cmds:               map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitcode, "eventually": eventually, "followhint": followHint},
	})
}
