package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// proxyGroup is the group of Envoy, whose connections are not redirected.
const proxyGroup = 1337

// inPod reports whether the test runs in a network namespace of its own, as a
// pod does. If not, it starts the test again in one and reports its result.
func inPod(t *testing.T) bool {
	t.Helper()
	return harness.RunsInOwnNetwork(t, "redirection to a real Envoy", []string{"ip", "nft"}, envMeshctl+"="+meshctl)
}

// pod is a network namespace with the proxy of the pod "client" of namespace
// shop. Its connections are redirected to the proxy: those to its own
// addresses to the inbound port, all others to the outbound port.
type pod struct {
	addresses []netip.Addr
	dir       string
	mesh      string // directory of the objects
}

// startPod turns the test's network namespace into the network of the pod, with a control
// plane that has the objects.
func startPod(t *testing.T, objects string, addresses ...string) *pod {
	t.Helper()
	p := preparePod(t, objects, addresses...)
	_, secure := controlPlane(t, p.dir, p.mesh)
	p.startProxy(t, secure)
	return p
}

// preparePod is startPod without the control plane and the proxy.
func preparePod(t *testing.T, objects string, addresses ...string) *pod {
	t.Helper()
	p := &pod{dir: harness.ShortDir(t)}
	own := make(map[bool][]string) // by whether they are IPv6
	for _, a := range addresses {
		ip := netip.MustParseAddr(a)
		p.addresses = append(p.addresses, ip)
		own[ip.Is6()] = append(own[ip.Is6()], a)
	}
	runTool(t, "", "ip", "link", "set", "lo", "up")
	for _, a := range addresses {
		p.address(t, a)
	}
	var inbound string
	for is6, keyword := range map[bool]string{false: "ip", true: "ip6"} {
		if len(own[is6]) == 0 {
			continue
		}
		route := []string{"route", "add", "default", "dev", "lo"}
		if is6 {
			// What Envoy calls its application from, beside 127.0.0.6.
			p.address(t, "::6")
			route = append([]string{"-6"}, route...)
		}
		runTool(t, "", "ip", route...)
		inbound += fmt.Sprintf("meta l4proto tcp %s daddr { %s } redirect to :15006\n", keyword, strings.Join(own[is6], ", "))
	}
	// The control plane and the proxy's own ports have loopback addresses.
	runTool(t, fmt.Sprintf(`table inet pod {
chain output {
type nat hook output priority -100
meta skgid %d return
ip daddr 127.0.0.0/8 return
ip6 daddr ::1 return
tcp dport { 15021, 15090 } return
%smeta l4proto tcp redirect to :15001
}
}
`, proxyGroup, inbound), "nft", "-f", "-")

	p.mesh = filepath.Join(p.dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(p.mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.mesh, "cluster1", "mesh.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// address gives the pod an address.
func (p *pod) address(t *testing.T, ip string) {
	t.Helper()
	args := []string{"address", "add", netip.PrefixFrom(netip.MustParseAddr(ip), netip.MustParseAddr(ip).BitLen()).String(), "dev", "lo"}
	if strings.Contains(ip, ":") {
		args = append(args, "nodad") // usable at once
	}
	runTool(t, "", "ip", args...)
}

// startProxy starts the agent of the pod with its Envoy, with further variables of its environment.
func (p *pod) startProxy(t *testing.T, secure string, env ...string) {
	t.Helper()
	token := filepath.Join(p.dir, "token")
	mustRun(t, "token", "create", "--issuer", filepath.Join(p.dir, "issuer"), "--service-account", "shop/client", "--out", token)
	work := filepath.Join(p.dir, "client")
	if err := os.MkdirAll(work, 0o700); err != nil {
		t.Fatal(err)
	}
	stop := backgroundAs(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: proxyGroup}},
		filepath.Join(p.dir, "client.log"), work, append([]string{
			"POD_NAME=client", "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=client", "INSTANCE_IP=" + p.addresses[0].String(),
			"CA_ADDR=" + secure, `PROXY_CONFIG={"discoveryAddress":"` + secure + `","concurrency":1,"terminationDrainDuration":"0s"}`,
			"ISTIO_META_CLUSTER_ID=cluster1", `ISTIO_METAJSON_LABELS={"app":"client"}`,
		}, env...), "agent", "--envoy", envoy.Path(t),
		"--root-ca", filepath.Join(p.dir, "ca", "cluster1", "root-cert.pem"), "--token", token)
	t.Cleanup(stop)
	eventually(t, "the proxy is ready", func() error {
		_, _, err := get("http://localhost:15020/healthz/ready")
		return err
	})
}

// runTool runs a tool of the system to its end with a standard input.
func runTool(t *testing.T, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// get returns the answer to a GET request over a connection of its own, and
// the server that it names.
func get(url string) (body, server string, err error) {
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), resp.Header.Get("Server"), err
}

// What an answer names as its server.
const (
	overTCP      = "" // the application of these tests names none
	outboundHTTP = "envoy"
	inboundHTTP  = "istio-envoy"
)

// served checks the answer to a GET request, and how it came.
func served(t *testing.T, url, how, want string) {
	t.Helper()
	if got, server, err := get(url); err != nil || got != want || server != how {
		t.Errorf("GET %s: %q of server %q, error %v, want %q of %q", url, got, server, err, want, how)
	}
}

// sharedNumbers is a Service each of whose TCP ports has the number of a UDP
// port that comes first, and its only endpoint.
const sharedNumbers = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.80]
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, targetPort: 8053, protocol: TCP}
  - {name: quic, port: 443, protocol: UDP}
  - {name: https, port: 443, targetPort: 8443, protocol: TCP}
  - {name: udp, port: 80, protocol: UDP}
  - {name: http, port: 80, targetPort: 8080, protocol: TCP}
  - {name: any-udp, port: 7000, protocol: UDP}
  - {name: any, port: 7000, targetPort: 8700, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
- {name: dns, port: 8053, protocol: UDP}
- {name: dns-tcp, port: 8053, protocol: TCP}
- {name: https, port: 8443, protocol: TCP}
- {name: http, port: 8080, protocol: TCP}
- {name: any, port: 8700, protocol: TCP}
endpoints:
- addresses: [10.11.0.5]
`

// TestTCPBehindUDPStaysInTheMesh sends redirected requests to TCP ports that
// share their numbers with UDP ports. A stranger at the service's address
// answers whatever leaves the mesh.
func TestTCPBehindUDPStaysInTheMesh(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, sharedNumbers, "10.11.0.77")
	p.address(t, "10.11.0.5")
	p.address(t, "10.96.0.80")
	for service, port := range map[string]struct{ target, how string }{
		"53": {"8053", overTCP}, "443": {"8443", overTCP}, "80": {"8080", outboundHTTP}, "7000": {"8700", outboundHTTP},
	} {
		answers(t, "10.11.0.5:"+port.target, "in the mesh")
		answers(t, "10.96.0.80:"+service, "outside of the mesh")
		served(t, "http://10.96.0.80:"+service, port.how, "in the mesh")
	}
}

// externalNames has ExternalName Services for the service web and for the host of a ServiceEntry,
// which is called over TLS, and a VirtualService for one of the names.
const externalNames = `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"}
---
apiVersion: v1
kind: Service
metadata: {name: store, namespace: old}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: routed, namespace: old}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routed, namespace: old}
spec:
  hosts: [routed.old.svc.cluster.local]
  http:
  - {match: [{uri: {prefix: /direct}}], directResponse: {status: 207, body: {string: direct}}}
  - {rewrite: {authority: rewritten}, route: [{destination: {host: routed.old.svc.cluster.local}}]}
---
apiVersion: v1
kind: Service
metadata: {name: partner, namespace: old}
spec: {type: ExternalName, externalName: api.example.net}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: partner, namespace: old}
spec:
  hosts: [api.example.net]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 9443}]
  endpoints: [{address: 10.11.0.5}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: partner, namespace: old}
spec: {host: api.example.net, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
`

// TestExternalNameStaysInTheMesh calls services by the names of ExternalName services. A stranger
// at the service's address answers whatever leaves the mesh.
func TestExternalNameStaysInTheMesh(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, sharedNumbers+externalNames, "10.11.0.77")
	for _, ip := range []string{"10.11.0.5", "10.96.0.80", "10.77.0.1"} {
		p.address(t, ip)
	}
	serves(t, "10.11.0.5:8080", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in the mesh: ", r.Host) })
	servesTLS(t, "10.11.0.5:9443", nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "over TLS") })
	for _, at := range []string{"10.96.0.80:80", "10.77.0.1:80"} {
		answers(t, at, "outside of the mesh")
	}
	for _, tc := range []struct{ url, host, want string }{
		{"http://10.96.0.80", "store.old", "200 in the mesh: store.old"},
		{"http://10.96.0.80/direct", "store.old", "200 in the mesh: store.old"},
		{"http://10.96.0.80/direct", "routed.old", "207 direct"},
		{"http://10.96.0.80", "routed.old", "200 in the mesh: rewritten"},
		{"http://10.77.0.1", "partner.old", "200 over TLS"},
		{"http://10.77.0.1", "api.example.net", "200 over TLS"},
	} {
		eventually(t, tc.host+" at "+tc.url, func() error {
			if got := requested(t, tc.url, tc.host); fmt.Sprint(got.status, " ", got.body) != tc.want {
				return fmt.Errorf("%+v, want %s", got, tc.want)
			}
			return nil
		})
	}
}

// family is one IP version of a mesh: the addresses of the pod "client", of a
// service and its only endpoint, and of a stranger.
type family struct{ client, service, endpoint, stranger string }

var (
	ipv4 = family{"10.11.0.77", "10.96.0.80", "10.11.0.5", "10.77.0.1"}
	ipv6 = family{"fd00:a::77", "fd00:96::80", "fd00:a::5", "fd00:77::1"}
)

// familyMesh has the services "web", of the endpoint, and "client", of the pod
// itself, with the addresses of some IP versions.
func familyMesh(families []family) string {
	var vips, own []string
	var slices string
	for _, f := range families {
		vips, own = append(vips, f.service), append(own, "{ip: \""+f.client+"\"}")
		kind := "IPv4"
		if strings.Contains(f.endpoint, ":") {
			kind = "IPv6"
		}
		slices += fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%[1]s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: %[2]s
ports:
- {name: http, port: 8080}
- {name: tcp, port: 8443}
endpoints:
- addresses: ["%[3]s"]
`, strings.ToLower(kind), kind, f.endpoint)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: ["%s"]
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp, port: 443, targetPort: 8443}
---
apiVersion: v1
kind: Service
metadata: {name: client, namespace: shop}
spec:
  clusterIP: None
  selector: {app: client}
  ports:
  - {name: http, port: 8080}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client}
status: {podIPs: [%s]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "accessLogFile: /dev/stdout"}
%s`, strings.Join(vips, `", "`), strings.Join(own, ", "), slices)
}

func TestRedirectedIPv4Only(t *testing.T)  { redirectedByFamily(t, ipv4) }
func TestRedirectedIPv6Only(t *testing.T)  { redirectedByFamily(t, ipv6) }
func TestRedirectedDualStack(t *testing.T) { redirectedByFamily(t, ipv4, ipv6) }

// redirectedByFamily sends redirected requests over each IP version of a pod:
// to a service over HTTP and over TCP, to strangers at a port of a service and
// at another port, and to the pod itself at a port of a service and at another
// port.
func redirectedByFamily(t *testing.T, families ...family) {
	if !inPod(t) {
		return
	}
	var own []string
	for _, f := range families {
		own = append(own, f.client)
	}
	p := startPod(t, familyMesh(families), own...)
	at := net.JoinHostPort
	for _, f := range families {
		p.address(t, f.endpoint)
		p.address(t, f.stranger)
		answers(t, at(f.endpoint, "8080"), "the service over HTTP")
		answers(t, at(f.endpoint, "8443"), "the service over TCP")
		answers(t, at(f.stranger, "80"), "a stranger at a port of a service")
		answers(t, at(f.stranger, "9000"), "a stranger")
		answers(t, at(f.client, "8080"), "the application at a port of a service")
		answers(t, at(f.client, "9000"), "the application")
	}
	for _, f := range families {
		served(t, "http://"+at(f.service, "80"), outboundHTTP, "the service over HTTP")
		served(t, "http://"+at(f.service, "443"), overTCP, "the service over TCP")
		served(t, "http://"+at(f.stranger, "80"), outboundHTTP, "a stranger at a port of a service")
		served(t, "http://"+at(f.stranger, "9000"), overTCP, "a stranger")
		served(t, "http://"+at(f.client, "8080"), inboundHTTP, "the application at a port of a service")
		served(t, "http://"+at(f.client, "9000"), inboundHTTP, "the application")
		// Probes and Prometheus come without redirection.
		for _, own := range []string{at(f.client, "15021") + "/healthz/ready", at(f.client, "15090") + "/stats/prometheus"} {
			if _, _, err := get("http://" + own); err != nil {
				t.Errorf("GET %s: %v", own, err)
			}
		}
	}
}
