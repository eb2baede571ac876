package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestClusterContexts: contexts may have commas and equal signs, as those of cloud providers do.
func TestClusterContexts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	config := "apiVersion: v1\nkind: Config\ncontexts:\n"
	for _, name := range []string{"plain", "b", "a=b", "c=d", "a,b", "arn:aws:eks:eu,1:cluster/x=y"} {
		config += "- {name: '" + name + "', context: {cluster: a, user: a}}\n"
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{
		"plain":                              "plain:plain",
		"plain,b":                            "plain:plain b:b",
		"east=plain,west=b":                  "east:plain west:b",
		"a=b":                                "a:b", // the form CLUSTER=CONTEXT, as b exists
		"c=d":                                "c=d:c=d",
		"east=c=d":                           "east:c=d",
		"a,b":                                "a,b:a,b",
		"east=a,b,plain":                     "east:a,b plain:plain",
		"arn:aws:eks:eu,1:cluster/x=y,plain": "arn:aws:eks:eu,1:cluster/x=y:arn:aws:eks:eu,1:cluster/x=y plain:plain",
		"none":                               "none:none",
		"none,plain":                         "none:none plain:plain",
		"x=none":                             "x:none",
	} {
		k := KubeFlags{kubeconfig: file}
		var values []string
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.StringSliceVar(&values, "context", nil, "")
		if err := fs.Parse([]string{"--context", typed}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range k.ClusterContexts(&Env{LookupEnv: os.LookupEnv}, values) {
			got = append(got, c.Cluster+":"+c.Context)
		}
		if !slices.Equal(got, strings.Split(want, " ")) {
			t.Errorf("%s: got %q, want %s", typed, got, want)
		}
	}
	k := KubeFlags{kubeconfig: file}
	for _, c := range [][2]string{{"plain,b", "plain b"}, {"a,b,plain", "a,b plain"}, {"c=d", "c=d"}, {"none,a,b", "none a,b"}, {"", ""}} {
		if got := strings.Join(k.Contexts(&Env{LookupEnv: os.LookupEnv}, strings.Split(c[0], ",")), " "); got != c[1] {
			t.Errorf("%s: got %q, want %q", c[0], got, c[1])
		}
	}
}

// TestFileInsteadOfFlag: a command that takes files by -f says so when a file is an argument.
func TestFileInsteadOfFlag(t *testing.T) {
	t.Parallel()
	withFlag := &cobra.Command{Use: "render"}
	withFlag.Flags().StringSliceP("file", "f", nil, "")
	withFollow := &cobra.Command{Use: "logs"}
	withFollow.Flags().BoolP("follow", "f", false, "")
	for _, c := range []struct {
		cmd       *cobra.Command
		arg, want string
	}{
		{withFlag, ".", `unexpected argument ".": it names a file or a directory, want --file .`},
		{withFlag, "none", `unexpected argument "none"`},
		{withFollow, ".", `unexpected argument "."`},
		{&cobra.Command{Use: "version"}, ".", `unexpected argument "."`},
	} {
		if err := NoArgs(c.cmd, []string{c.arg}); err == nil || err.Error() != c.want {
			t.Errorf("%s %s: %v, want %s", c.cmd.Use, c.arg, err, c.want)
		}
	}
}

// TestFilesAreArguments: a command whose arguments are files says so when -f is given.
func TestFilesAreArguments(t *testing.T) {
	t.Parallel()
	for use, want := range map[string]string{
		"analyze [PATH...]": "unknown shorthand flag: 'f' in -f: files are arguments, as in analyze FILE",
		"version":           "unknown shorthand flag: 'f' in -f",
	} {
		cmd := &cobra.Command{Use: use}
		if err := flagError(cmd, cmd.ParseFlags([]string{"-f", "a"})); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", use, err, want)
		}
	}
}
