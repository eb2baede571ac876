package agent

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

const group = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: client, namespace: sample}
spec: {template: {serviceAccount: client, labels: {app: client}}}
`

// TestVirtualMachine: a machine joins the mesh with the files of its WorkloadGroup. When it
// starts again, its certificate proves who it is, although its token is gone.
func TestVirtualMachine(t *testing.T) {
	ca, plane := certstest.NewIstioCA(t), &controlPlane{}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	_, port, err := net.SplitHostPort(ca.Addr)
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.ShortDir(t)
	file, vm := filepath.Join(dir, "group.yaml"), filepath.Join(dir, "vm")
	if err := os.WriteFile(file, []byte(group), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), meshctl, "workload", "entry", "configure", "-f", file, "--out", vm, "--cluster-id", "cluster1",
		"--discovery-address", certstest.ServerName+":"+port, "--ingress-ip", "127.0.0.1", "--root-ca", ca.RootFile, "--token-file", ca.TokenFile).CombinedOutput()
	if err != nil {
		t.Fatalf("configure: %v\n%s", err, out)
	}
	for _, name := range []string{"cluster.env", "mesh.yaml", "hosts", "root-cert.pem", "istio-token"} {
		if info, err := os.Stat(filepath.Join(vm, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for i := range 2 {
		p := &program{running: running{done: make(chan error, 1), http: dial.HTTPClient(deadline, nil)}}
		p.cmd = exec.CommandContext(t.Context(), meshctl, "workload", "run", "--dir", vm, "--bind-address", bind,
			"--envoy", envoy.Path(t), "--concurrency", "1", "--termination-drain-duration", "0s")
		p.cmd.Env = append(os.Environ(), "ISTIO_META_DNS_CAPTURE=false") // the control plane of the test has no names
		p.start(t)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.ended(t); err != nil {
			t.Errorf("the agent ended with %v", err)
		}
		if i == 0 {
			if err := os.Remove(filepath.Join(vm, "istio-token")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := plane.peerURI(), certstest.Identity().String(); got != want {
		t.Errorf("the control plane saw %q, want %q", got, want)
	}
	all := ca.Requests()
	if len(all) != 2 || all[0].Authorization == "" || all[1].Authorization != "" || all[1].Peer != certstest.Identity().String() || !strings.EqualFold(all[1].Cluster, "cluster1") {
		t.Errorf("requests for certificates: %+v", all)
	}
}
