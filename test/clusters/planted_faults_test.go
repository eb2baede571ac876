package clusters

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/test/harness"
)

// meshFault is a fault of a mesh, as testdata/faults.yaml describes it.
type meshFault struct {
	Name  string `json:"name"`
	Plant string `json:"plant"`
	Finds string `json:"finds"`
	// Without, if set, is a pattern of which no line must be.
	Without string `json:"without"`
	Remove  string `json:"remove"`
}

// healthyMesh makes a mesh of two clusters with examples/two-clusters and Istio's sample bookinfo.
const healthyMesh = `
meshctl certs root-ca --out certs
meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2
meshctl certs leaf --ca certs/cluster1 --dns bookinfo.example.com --ttl 90d --out leaf
for n in 1 2; do
  c=cluster$n
  meshctl install --context $c --cluster-id $c --network network$n --mesh-id mesh1 --crds --east-west-gateway --ingress-gateway --ca-dir certs/$c --wait=false
  (cd examples/two-clusters/$c && kubectl --context $c apply --server-side -f 1-namespaces.yaml)
  kubectl --context $c create secret tls bookinfo-credential -n istio-ingress --cert leaf/cert-chain.pem --key leaf/key.pem
done
for n in 1 2; do
  c=cluster$n
  meshctl install --context $c --cluster-id $c --network network$n --mesh-id mesh1 --crds --east-west-gateway --ingress-gateway
  (cd examples/two-clusters/$c && kubectl --context $c apply --server-side -f 4-helloworld.yaml -f 5-client.yaml)
  kubectl --context $c apply -f bookinfo.yaml
done
meshctl multicluster link cluster1 cluster2
for c in cluster1 cluster2; do
  kubectl --context $c wait -n sample --for=condition=Available --timeout=5m --all deployments
  kubectl --context $c wait -n bookinfo --for=condition=Available --timeout=5m --all deployments
done
`

// asKubectl defines the functions of testdata/faults.yaml.
const asKubectl = `k1() { kubectl --context cluster1 "$@"; }
k2() { kubectl --context cluster2 "$@"; }
`

// checkAll is the only command that looks for the faults.
const checkAll = "meshctl check --context cluster1 --all-clusters"

// TestPlantedFaults plants faults in a healthy mesh, one at a time, and removes them again. meshctl check
// names the cause and the fix of each, and finds nothing in the healthy mesh.
func TestPlantedFaults(t *testing.T) {
	u := newUser(t)
	text, err := os.ReadFile("testdata/faults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var faults []meshFault
	if err := yaml.UnmarshalStrict(text, &faults); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(u.dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	for _, n := range u.clusters.Nodes {
		if err := n.ctr(t.Context(), "images", "tag", "localhost/meshctl:"+version, "localhost/meshctl:"+earlier); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	u.run(healthyMesh)
	u.agedCA(t)
	u.healthy(t)
	t.Logf("healthy mesh after %s", time.Since(began).Round(time.Second))
	began = time.Now()
	var times []time.Duration
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			u := &user{t, u.clusters, u.dir}
			u.run(asKubectl + f.Plant)
			times = append(times, u.finds(t, &f))
			u.run(asKubectl + f.Remove)
			u.healthy(t)
		})
	}
	t.Run("names of contexts", u.testContextNames)
	if len(times) > 0 {
		slices.Sort(times)
		t.Logf("%d faults in %s; meshctl check took %s, at most %s", len(faults), time.Since(began).Round(time.Second), times[len(times)/2], times[len(times)-1])
	}
}

// agedCA writes a CA of the root of the mesh to the directory aged. It has lived long and expires in ten days.
func (u *user) agedCA(t *testing.T) {
	t.Helper()
	signer, err := tls.LoadX509KeyPair(filepath.Join(u.dir, "certs/root-cert.pem"), filepath.Join(u.dir, "certs/root-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(signer.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "aged"}, NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(0, 0, 10),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, DNSNames: []string{"istiod.istio-system.svc"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	u.run("mkdir aged && cp certs/root-cert.pem aged")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, content := range map[string][]byte{
		"ca-cert.pem": text, "cert-chain.pem": text, "ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(filepath.Join(u.dir, "aged", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// finds waits until meshctl check reports a fault, and returns how long the command took.
func (u *user) finds(t *testing.T, f *meshFault) (took time.Duration) {
	t.Helper()
	want := regexp.MustCompile("(?m)^" + f.Finds)
	harness.Eventually(t, moved, "the fault in meshctl check", func() error {
		began := time.Now()
		out, err := u.try("", checkAll)
		took = time.Since(began).Round(time.Millisecond)
		out = regexp.MustCompile(" +\n").ReplaceAllString(out, "\n")
		line := want.FindString(out)
		if exit, failed := errors.AsType[*exec.ExitError](err); !failed || exit.ExitCode() != 3 || line == "" {
			return fmt.Errorf("no line matches %s: %w\n%s", f.Finds, err, out)
		}
		if f.Without != "" && regexp.MustCompile(f.Without).MatchString(out) {
			return fmt.Errorf("a line matches %s:\n%s", f.Without, out)
		}
		t.Logf("%s\nall of %d lines:\n%s", line, strings.Count(out, "\n")-1, out)
		return nil
	})
	return took
}

// healthy waits until meshctl check finds nothing.
func (u *user) healthy(t *testing.T) {
	t.Helper()
	harness.Eventually(t, moved, "nothing in meshctl check", func() error {
		_, err := u.try("", checkAll)
		return err
	})
}

// testContextNames: the commands that mend a fault name the contexts of the kubeconfig, which are not the names
// of the clusters.
func (u *user) testContextNames(t *testing.T) {
	u = &user{t, u.clusters, u.dir}
	const renamed = "export KUBECONFIG=renamed\n"
	u.run("cp \"$KUBECONFIG\" renamed\n" + renamed + `kubectl config rename-context cluster1 east
kubectl --context cluster2 get secret istio-remote-secret-cluster1 -n istio-system -o json | jq 'del(.metadata.resourceVersion, .metadata.uid)' > named.json
jq '.data |= map_values(@base64d | sub("token: [^\n]*"; "token: revoked") | @base64)' named.json | kubectl --context cluster2 replace -f -`)
	const want = "meshctl remote-secret rotate --name cluster1 --context east --to cluster2"
	harness.Eventually(t, moved, "the contexts", func() error {
		out, err := u.try("", renamed+"meshctl check --context east --all-clusters")
		if !strings.Contains(out, want) {
			return fmt.Errorf("no %q: %w\n%s", want, err, out)
		}
		return nil
	})
	u.run("kubectl --context cluster2 replace -f named.json")
	u.healthy(t)
}
