package cli

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
)

// probe is a command with a flag of each kind.
type probe struct {
	Name  string
	Count int
	Force bool
	TTL   time.Duration
	Dirs  []string
	Names []string
}

// runProbe runs `meshctl probe args…` and returns its options or the error.
func runProbe(t *testing.T, vars map[string]string, args ...string) (probe, error) {
	t.Helper()
	env := &Env{
		Stdin:     strings.NewReader(""),
		Stdout:    t.Output(),
		Stderr:    t.Output(),
		LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		Now:       time.Now,
	}
	var got probe
	cmd := &cobra.Command{Use: "probe", RunE: func(*cobra.Command, []string) error { return nil }}
	cmd.Flags().StringVar(&got.Name, "name", "default", "")
	cmd.Flags().IntVar(&got.Count, "count", 1, "")
	cmd.Flags().BoolVar(&got.Force, "force", false, "")
	DurationVar(cmd.Flags(), &got.TTL, "max-ttl", time.Hour, "")
	cmd.Flags().StringArrayVar(&got.Dirs, "dir", []string{"default"}, "")
	cmd.Flags().StringSliceVar(&got.Names, "names", nil, "")
	if err := cmd.MarkFlagRequired("name"); err != nil {
		t.Fatal(err)
	}
	root := NewRoot(env)
	other := &cobra.Command{Use: "other"}
	other.Flags().String("output", "", "")
	root.AddCommand(other)
	prepare(cmd)
	root.AddCommand(cmd)
	root.SetArgs(append([]string{"probe"}, args...))
	return got, root.ExecuteContext(t.Context())
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "meshctl.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigurePrecedence(t *testing.T) {
	t.Parallel()
	file := `
name: 007 # stays as it is written
count: 7
force: true
max-ttl: 1d
dir: [a, "b,c"]
names: x
output: json # of another command
`
	fromFile := probe{Name: "007", Count: 7, Force: true, TTL: 24 * time.Hour, Dirs: []string{"a", "b,c"}, Names: []string{"x"}}
	vars := map[string]string{
		"MESHCTL_NAME":    "env",
		"MESHCTL_COUNT":   "8",
		"MESHCTL_FORCE":   "false",
		"MESHCTL_MAX_TTL": "36h",
		"MESHCTL_DIR":     "d,e",
		"MESHCTL_NAMES":   "y,z",
		"MESHCTL_HELP":    "true", // not a flag to set
	}
	fromEnv := probe{Name: "env", Count: 8, TTL: 36 * time.Hour, Dirs: []string{"d", "e"}, Names: []string{"y", "z"}}
	flags := []string{"--name=flag", "--count=9", "--force", "--max-ttl=1d12h1s", "--dir=f", "--dir=g", "--names=v,w"}
	fromFlags := probe{Name: "flag", Count: 9, Force: true, TTL: 36*time.Hour + time.Second, Dirs: []string{"f", "g"}, Names: []string{"v", "w"}}

	tests := []struct {
		name  string
		file  string
		vars  map[string]string
		flags []string
		want  probe
	}{
		{"default", "", nil, []string{"--name=n"}, probe{Name: "n", Count: 1, TTL: time.Hour, Dirs: []string{"default"}}},
		{"file", file, nil, nil, fromFile},
		{"environment before file", file, vars, nil, fromEnv},
		{"flag before environment", file, vars, flags, fromFlags},
		{"flag before file", file, nil, flags, fromFlags},
		{"empty variable is not set", file, map[string]string{"MESHCTL_NAME": ""}, nil, fromFile},
		{"empty list", "name: n\ndir: []", nil, nil, probe{Name: "n", Count: 1, TTL: time.Hour, Dirs: []string{}}},
		{"alias", "name: &n x\ndir: [*n]", nil, nil, probe{Name: "x", Count: 1, TTL: time.Hour, Dirs: []string{"x"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			vars := maps.Clone(tt.vars)
			if vars == nil {
				vars = map[string]string{}
			}
			vars["MESHCTL_CONFIG"] = writeFile(t, tt.file)
			got, err := runProbe(t, vars, tt.flags...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigureRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file string
		vars map[string]string
		want string // FILE stands for the file's path
	}{
		{"unknown key", "nme: x", nil, `FILE:1: key "nme" is not a flag of any command, did you mean "name"?`},
		{"unknown key with an empty value", "a: x\nxyzzy: {}", nil, `FILE:2: key "xyzzy" is not a flag of any command`},
		{"key in another case", "Name: x", nil, `FILE:1: key "Name" is not a flag of any command, did you mean "name"?`},
		{"file in the file", "config: other.yaml", nil, `FILE:1: key "config" cannot be set in the file itself`},
		{"help", "help: true", nil, `FILE:1: key "help" is not a flag of any command`},
		{"given twice", "name: x\nname: y", nil, `FILE:2: key "name" is given twice`},
		{"no value", "name:", nil, `FILE:1: key "name" must be a value or a list of values`},
		{"mapping", "name: {a: b}", nil, `FILE:1: key "name" must be a value or a list of values`},
		{"list in a list", "dir:\n- a\n- [b]", nil, `FILE:1: key "dir" must be a list of plain values, line 3 has another`},
		{"list in itself", "dir: &a [*a]", nil, `FILE:1: key "dir" must be a list of plain values, line 1 has another`},
		{"list for one value", "name: [a]", nil, `FILE:1: key "name": takes one value, not a list`},
		{"wrong number in the file", "count: 1.5", nil, `FILE:1: key "count": invalid argument "1.5" for "--count" flag`},
		{"wrong duration in the file", "max-ttl: 10", nil, `FILE:1: key "max-ttl": invalid argument "10" for "--max-ttl" flag`},
		{"wrong bool in the environment", "", map[string]string{"MESHCTL_FORCE": "si"}, `environment variable MESHCTL_FORCE: invalid argument "si" for "--force" flag`},
		{"not YAML", "a: b: c", nil, "configuration file FILE: yaml:"},
		{"not a mapping", "- name", nil, "configuration file FILE: line 1: want flag names and values"},
		{"two documents", "name: x\n---\nname: y", nil, "configuration file FILE: has more than one YAML document"},
		{"too large", "#" + strings.Repeat(" ", maxConfigSize), nil, "configuration file FILE: larger than 1048576 bytes"},
		{"required flag nowhere", "count: 2", nil, `required flag(s) "name" not set`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, tt.file)
			_, err := runProbe(t, tt.vars, "--config", path)
			if err == nil {
				t.Fatal("no error")
			}
			got := strings.ReplaceAll(err.Error(), path, "FILE")
			if !strings.Contains(got, tt.want) {
				t.Errorf("error is\n%s\nwant in it\n%s", got, tt.want)
			}
			if code := report(&bytes.Buffer{}, &cobra.Command{}, err); code != ExitUsage {
				t.Errorf("exit code %d, want %d", code, ExitUsage)
			}
		})
	}
}

func FuzzReadMapping(f *testing.F) {
	f.Add("name: x\ndir: [a, b]\n")
	f.Add("&a x: *a\n? [b]\n: c\n")
	f.Add("&a x: &b [*b]\n")
	f.Add("--- null\n...\n")
	f.Fuzz(func(t *testing.T, content string) {
		nodes, err := readMapping(strings.NewReader(content))
		if err == nil && len(nodes)%2 != 0 {
			t.Fatalf("%d nodes are no pairs", len(nodes))
		}
		for _, node := range nodes {
			if value, err := nodeValue(node); err == nil && value == nil {
				t.Error("no value and no error")
			}
		}
	})
}
