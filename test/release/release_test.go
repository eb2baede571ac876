// Package release builds a release for one platform, and uses it.
package release

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/test/harness"
)

// run runs a program in a folder and returns what it writes.
func run(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestRelease: the archive has a program that runs, also as a plugin of kubectl, and manual pages.
// Checksums, SBOM, provenance, signatures and the manifest for krew fit it.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a release")
	}
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "key.pem")
	run(t, dir, nil, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
	const version = "v0.0.1"
	name := fmt.Sprintf("meshctl-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH)
	run(t, "../..", []string{"RELEASE_DIR=" + dir, "RELEASE_KEY=" + key}, "hack/release.sh", version, runtime.GOOS+"/"+runtime.GOARCH)

	sums := run(t, dir, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	for _, file := range []string{name + ".tar.gz", name + ".cdx.json", "mesh.yaml"} {
		if !strings.Contains(sums, file+": OK") {
			t.Errorf("SHA256SUMS has no %s:\n%s", file, sums)
		}
	}
	// As SECURITY.md says.
	run(t, dir, nil, "bash", "-ec", "base64 -d SHA256SUMS.sig > signature && openssl dgst -sha256 -verify release.pub -signature signature SHA256SUMS")

	run(t, dir, nil, "tar", "-xf", name+".tar.gz")
	folder := filepath.Join(dir, name)
	for _, page := range []string{"meshctl.1", "meshctl-install.1", "meshctl-multicluster-link.1"} {
		if text, err := os.ReadFile(filepath.Join(folder, "man", page)); err != nil || !strings.Contains(string(text), ".SH NAME") {
			t.Errorf("manual page %s: %v", page, err)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "LICENSE")); err != nil {
		t.Error(err)
	}
	if out := run(t, dir, nil, filepath.Join(folder, "meshctl"), "version"); !strings.Contains(out, version) {
		t.Errorf("the version is %s", out)
	}
	kubectl, err := harness.Cached("kube/kubectl", "kube")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("meshctl", filepath.Join(folder, "kubectl-mesh")); err != nil {
		t.Fatal(err)
	}
	if out := run(t, dir, []string{"PATH=" + folder + ":" + os.Getenv("PATH")}, kubectl, "mesh", "version"); !strings.Contains(out, version) {
		t.Errorf("kubectl mesh version: %s", out)
	}

	archive, err := os.ReadFile(filepath.Join(dir, name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(archive))
	var plugin struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription string
			Platforms                 []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels map[string]string }
				Files            []struct{ From, To string }
			}
		}
	}
	decode(t, filepath.Join(dir, "mesh.yaml"), &plugin)
	p := plugin.Spec.Platforms
	if plugin.Kind != "Plugin" || plugin.Metadata.Name != "mesh" || plugin.Spec.Version != version || len(p) != 1 ||
		p[0].SHA256 != sum || p[0].Bin != "meshctl" || !strings.HasSuffix(p[0].URI, "/"+version+"/"+name+".tar.gz") ||
		p[0].Selector.MatchLabels["os"] != runtime.GOOS || p[0].Selector.MatchLabels["arch"] != runtime.GOARCH || p[0].Files[0].From != name+"/*" {
		t.Errorf("the manifest for krew is %+v", plugin)
	}

	var sbom struct {
		BOMFormat  string
		Components []struct{ PURL string }
	}
	decode(t, filepath.Join(dir, name+".cdx.json"), &sbom)
	if sbom.BOMFormat != "CycloneDX" || len(sbom.Components) < 20 || !strings.HasPrefix(sbom.Components[0].PURL, "pkg:golang/") {
		t.Errorf("the SBOM is %+v", sbom)
	}

	var envelope struct {
		PayloadType string
		Payload     []byte
		Signatures  []struct{ Sig []byte }
	}
	decode(t, filepath.Join(dir, "provenance.intoto.jsonl"), &envelope)
	if len(envelope.Signatures) != 1 || !verified(t, filepath.Join(dir, "release.pub"), envelope.Signatures[0].Sig,
		fmt.Sprintf("DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(envelope.Payload), envelope.Payload)) {
		t.Error("the signature of the provenance is wrong")
	}
	var provenance struct {
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(envelope.Payload, &provenance); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range provenance.Subject {
		found = found || s.Name == name+".tar.gz" && s.Digest["sha256"] == sum
	}
	commit := strings.TrimSpace(run(t, "../..", nil, "git", "rev-parse", "HEAD"))
	if d := provenance.Predicate.BuildDefinition.ResolvedDependencies; !found || provenance.PredicateType != "https://slsa.dev/provenance/v1" ||
		len(d) != 1 || d[0].Digest["gitCommit"] != commit {
		t.Errorf("the provenance is %s", envelope.Payload)
	}
}

// decode reads a file of JSON or YAML.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// verified reports whether a signature is right.
func verified(t *testing.T, key string, signature []byte, text string) bool {
	t.Helper()
	content, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		t.Fatalf("%s is no PEM", key)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte(text))
	return ecdsa.VerifyASN1(public.(*ecdsa.PublicKey), digest[:], signature)
}
