package cli

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestAliasesInEnvironment: the environment does not set a flag by a name that has another
// meaning elsewhere; what is typed wins.
func TestAliasesInEnvironment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string // --file and --api-server
	}{
		"typed":         {[]string{"--filename", "a", "--server", "b"}, nil, "[a] b"},
		"both names":    {[]string{"-f", "a", "--filename", "b"}, nil, "[a,b] "},
		"environment":   {nil, map[string]string{"MESHCTL_FILENAME": "a", "MESHCTL_API_SERVER": "b"}, "[a] b"},
		"other meaning": {nil, map[string]string{"MESHCTL_FILE": "a", "MESHCTL_SERVER": "b"}, "[] "},
		"typed wins":    {[]string{"-f", "a", "--server", "b"}, map[string]string{"MESHCTL_FILENAME": "c", "MESHCTL_API_SERVER": "d"}, "[a] b"},
	} {
		var files []string
		var server string
		cmd := &cobra.Command{Use: "test"}
		fs := cmd.Flags()
		fs.String(configFlag, "", "")
		fs.StringSliceVarP(&files, "file", "f", nil, "")
		Rename(fs, "file", "filename")
		fs.StringVar(&server, "api-server", "", "")
		Alias(fs, "api-server", "server")
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		env := &Env{Stderr: io.Discard, LookupEnv: func(key string) (string, bool) { v, ok := c.env[key]; return v, ok }}
		if err := configure(env, cmd); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := fs.Lookup("file").Value.String() + " " + server; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestRunnableHints: a hint of a control plane that ends in a command names the control
// planes that were asked.
func TestRunnableHints(t *testing.T) {
	t.Parallel()
	f := ReplicaFlags{Servers: []string{"a:1", "b:1"}, Contexts: MeshContexts{Names: []string{"kind c1", "c2"}, All: true}, System: "mesh"}
	got := f.Runnable([]string{"Faults: meshctl x internal-debug analysis --all", "Warning: none"})
	want := []string{"Faults: meshctl x internal-debug analysis --all --server a:1,b:1 --context 'kind c1,c2' --all-clusters --istioNamespace mesh", "Warning: none"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
