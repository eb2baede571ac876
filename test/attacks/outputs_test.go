package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs meshctl in a directory and returns its output.
func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), meshctl, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestKeysAreNotWrittenWhereOthersMayReplaceThem: commands that write keys and tokens refuse a
// directory in which any user may replace the files, and leave nothing there.
func TestKeysAreNotWrittenWhereOthersMayReplaceThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must := func(args ...string) {
		t.Helper()
		if out, err := run(t, dir, args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	must("certs", "root-ca", "--out", "root")
	must("certs", "intermediate-ca", "--root", "root", "--out", "cas", "cluster1")
	must("token", "issuer", "--out", "issuer")
	group := filepath.Join(dir, "group.yaml")
	if err := os.WriteFile(group, []byte("apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: vm, namespace: shop}\nspec: {template: {serviceAccount: vm}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"root":         {"certs", "root-ca", "--out", "open"},
		"below":        {"certs", "root-ca", "--out", "open/new"},
		"deeper":       {"certs", "root-ca", "--out", "open/a/b"},
		"intermediate": {"certs", "intermediate-ca", "--root", "root", "--out", "open", "cluster1"},
		"leaf":         {"certs", "leaf", "--ca", "cas/cluster1", "--namespace", "shop", "--service-account", "web", "--out", "open/leaf"},
		"issuer":       {"token", "issuer", "--out", "open"},
		"token":        {"token", "create", "--issuer", "issuer", "--service-account", "shop/web", "--out", "open/token"},
		"secret":       {"create-remote-secret", "--out", "open/secret.yaml"},
		"machine":      {"workload", "entry", "configure", "-f", group, "--out", "open/vm", "--cluster-id", "cluster1", "--ingress-ip", "192.0.2.1", "--root-ca", "root/root-cert.pem"},
	} {
		open := filepath.Join(dir, "open")
		if err := os.Mkdir(open, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(open, 0o777); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, dir, args...)
		if err == nil || !strings.Contains(out, "refuse to write keys and tokens below "+open+": its mode 0777 lets others replace files in it") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if left, err := os.ReadDir(open); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", name, left, err)
		}
		if err := os.RemoveAll(open); err != nil {
			t.Fatal(err)
		}
	}
}
