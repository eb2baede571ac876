package commands

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
)

// TestSettingsThatWeakenSecurityAreNamed: a weakened setting causes a warning.
func TestSettingsThatWeakenSecurityAreNamed(t *testing.T) {
	t.Parallel()
	// The commands fail early: only their warnings matter.
	for name, tc := range map[string]struct {
		args        []string
		flag, value string
		want        string // the flag in the warning
	}{
		"a token goes to who is not verified": {[]string{"ps", "--xds-address", "127.0.0.1:1", "--token-file", "missing"}, "insecure", "true", "--insecure"},
		"kubeconfigs of serve":                {[]string{"serve", "--log-level", "none"}, "insecure-remote", "cluster2=exec", "--insecure-remote [cluster2=exec]"},
		"kubeconfigs of check":                {[]string{"remote-secret", "check", "missing"}, "insecure-remote", "cluster2=exec", "--insecure-remote [cluster2=exec]"},
		"status pages in clear":               {[]string{"serve", "--log-level", "none"}, "debug-network", "true", "--debug-network"},
		"headers that are trusted":            {[]string{"serve", "--log-level", "none"}, "trusted-gateway-cidr", "0.0.0.0/0", "--trusted-gateway-cidr [0.0.0.0/0]"},
		"old TLS":                             {[]string{"serve", "--log-level", "none"}, "tls-min-version", "1.2", "--tls-min-version 1.2"},
		"classic key exchange":                {[]string{"serve", "--log-level", "none"}, "tls-key-exchange", "classic", "--tls-key-exchange classic"},
		"a role with all Secrets":             {[]string{"create-remote-secret", "--type", "none"}, "rbac", "istio", "--rbac istio"},
		"a rotation that asks none": {
			[]string{"remote-secret", "rotate"}, "no-wait", "true", "--no-wait",
		},
		"lists that are left out":  {[]string{"certs", "crl", "missing"}, "drop-unknown", "true", "--drop-unknown"},
		"files that are replaced":  {[]string{"certs", "root-ca"}, "force", "true", "--force"},
		"waits that are too short": {[]string{"certs", "rotate-root", "start", "missing"}, "force", "true", "--force"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(config, []byte(tc.flag+": "+tc.value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			variable := "MESHCTL_" + strings.ToUpper(strings.ReplaceAll(tc.flag, "-", "_"))
			for _, from := range []struct {
				vars map[string]string
				want string
			}{
				{map[string]string{variable: tc.value}, "environment variable " + variable},
				{map[string]string{"MESHCTL_CONFIG": config}, config + ":1: key \"" + tc.flag + "\""},
			} {
				for range 2 { // every run warns
					var stderr strings.Builder
					Run(t.Context(), testEnv(&stderr, from.vars), tc.args)
					want := "Warning: " + tc.want + " is set by " + from.want + ": "
					if n := strings.Count(stderr.String(), want); n != 1 {
						t.Errorf("%d lines with %q in\n%s", n, want, &stderr)
					}
				}
			}
			// A typed flag and the default cause no warning.
			for _, args := range [][]string{append(slices.Clone(tc.args), "--"+tc.flag+"="+tc.value), tc.args} {
				var stderr strings.Builder
				Run(t.Context(), testEnv(&stderr, nil), args)
				if strings.Contains(stderr.String(), "Warning: --") {
					t.Errorf("%v:\n%s", args, &stderr)
				}
			}
		})
	}
}

func testEnv(stderr *strings.Builder, vars map[string]string) *cli.Env {
	return &cli.Env{
		Stdin: strings.NewReader(""), Stdout: stderr, Stderr: stderr, Now: time.Now,
		LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
	}
}

// TestFlagsThatWeakenSecurity: flags with a suspicious name or help are marked as weakening,
// or are listed here as harmless.
func TestFlagsThatWeakenSecurity(t *testing.T) {
	t.Parallel()
	suspect := regexp.MustCompile(`(?i)insecure|force|plaintext|allow|skip|unsafe|(not|no)[ -]verif|in clear|is trusted|refused otherwise|without asking`)
	fine := map[string]string{
		"grpc-addr":       "serve itself warns of an address that is not loopback",
		"force-apply":     "agent redirect replaces its rules anyway",
		"skip-rule-apply": "agent redirect refuses it",
	}
	got := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !suspect.MatchString(f.Name+" "+f.Usage) || fine[f.Name] != "" {
				return
			}
			got[f.Name] = true
			if _, marked := f.Annotations["meshctl_weakens"]; !marked {
				t.Errorf("%s --%s: %s", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
	}
	visit(newRootCmd(testEnv(&strings.Builder{}, nil)))
	want := []string{"debug-network", "force", "ignore-security-policies", "insecure", "insecure-remote", "no-wait", "skip-confirmation", "trusted-gateway-cidr"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}
