package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

// serverName returns the name by which proxies call port 5000 of a service through a gateway.
func serverName(service string) string { return "outbound_.5000_._." + service + ".svc.cluster.local" }

// testServerNames: the gateway of a network leads to services of the mesh and to nothing else.
func (u *user) testServerNames(t *testing.T) {
	address := strings.TrimSpace(u.run("kubectl --context cluster2 get service istio-eastwestgateway -n istio-system -o jsonpath='{.status.loadBalancer.ingress[0].ip}'"))
	// handshake returns the identity of the server at the other end.
	handshake := func(name string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		identity := ""
		d := tls.Dialer{Config: &tls.Config{
			ServerName: name, NextProtos: []string{"istio"}, InsecureSkipVerify: true, // only the name matters
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				leaf, err := x509.ParseCertificate(raw[0])
				if err == nil && len(leaf.URIs) == 1 {
					identity = leaf.URIs[0].String()
				}
				return err
			},
		}}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(address, "15443"))
		if err == nil {
			err = conn.Close()
		}
		return identity, err
	}
	const want = "spiffe://cluster.local/ns/sample/sa/helloworld"
	if got, err := handshake(serverName("helloworld.sample")); got != want {
		t.Errorf("helloworld: identity %q, %v, want %q", got, err, want)
	}
	for _, name := range []string{
		serverName("nothing.sample"), serverName("helloworld.other"), serverName("kubernetes.default"), "helloworld.sample.svc.cluster.local",
		"outbound_.5001_._.helloworld.sample.svc.cluster.local", "inbound_.5000_._.helloworld.sample.svc.cluster.local", "example.com", "",
	} {
		if got, err := handshake(name); got != "" || err == nil {
			t.Errorf("server name %q: identity %q, %v, want a closed connection", name, got, err)
		}
	}
}

// testRemovals: the rest of the mesh loses no request while a remote secret, a gateway and a
// cluster are removed.
func (u *user) testRemovals(t *testing.T) {
	u.retries(t) // until the clusters end
	loads := u.loads(t, 2)
	moreOfBoth(loads)
	only := func(l *load, version string) {
		t.Helper()
		harness.Eventually(t, moved, "only answers of "+version, func() error {
			if r := l.more(50); r.Answers[version] != r.Requests-r.Failed {
				return fmt.Errorf("answers %v", r.Answers)
			}
			return nil
		})
	}
	u.run("meshctl remote-secret delete cluster2 --to cluster1 --revoke-in cluster2")
	only(loads[0], "v1")
	loads[1].until("answers of both versions", both) // cluster2 still reads cluster1
	u.run("meshctl multicluster link cluster1 cluster2")
	moreOfBoth(loads)
	// The gateway of cluster2. It is installed again before its pods have ended, and its new pods
	// start afterwards. kube-proxy sends connections to a pod that ends if a Service has no other,
	// for a short time even when the network of the pod is gone. Nothing answers these.
	pods := strings.Fields(u.run("kubectl --context cluster2 get pods -n istio-system -l istio=eastwestgateway -o name"))
	const install = "meshctl install --context cluster2 --cluster-id cluster2 --network network2 --mesh-id mesh1 --crds"
	if _, err := u.try("", install); err == nil || !strings.Contains(err.Error(), "deletes Deployment istio-system/istio-eastwestgateway") {
		t.Errorf("install without the gateway, and without --yes: %v", err)
	}
	u.run(install + " --yes")
	only(loads[0], "v1")
	loads[1].until("answers of both versions", both)
	u.run(`kubectl --context cluster2 cordon cluster2-node
` + install + ` --east-west-gateway --wait=false
kubectl --context cluster2 wait -n istio-system --for=delete --timeout=3m ` + strings.Join(pods, " ") + `
kubectl --context cluster2 uncordon cluster2-node`)
	moreOfBoth(loads)
	// cluster2 as a whole.
	loads[1].stop()
	u.run(`meshctl multicluster unlink cluster1 cluster2
kubectl --context cluster2 delete namespace sample --timeout=3m
meshctl uninstall --context cluster2`)
	only(loads[0], "v1")
	loads[0].more(500)
	// The control plane of cluster1. Its pods go on with what they have.
	u.run("meshctl uninstall --context cluster1 --yes")
	loads[0].more(500)
	loads[0].stop()
}

// testTag: the proxies of a namespace that a tag moves to another revision are in the
// table of its control planes as soon as they run.
func (u *user) testTag(t *testing.T) {
	u.run(`meshctl install --context cluster1 --cluster-id cluster1 --network network1 --mesh-id mesh1 --revision canary --revision-tag next
kubectl --context cluster1 label namespace sample --overwrite istio.io/rev=next istio-injection-
kubectl --context cluster1 rollout restart -n sample deployment client
kubectl --context cluster1 rollout status -n sample deployment client --timeout=5m`)
	began := time.Now()
	harness.Eventually(t, moved, "row of the client", func() error {
		out, err := u.try("", "meshctl proxy-status --context cluster1 -n sample")
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "client-") && strings.Contains(line, "istiod-canary-") {
				return nil
			}
		}
		t.Logf("no row after %s: %v\n%s", time.Since(began).Round(time.Millisecond), err, out)
		return fmt.Errorf("%w:\n%s", err, out)
	})
	t.Logf("the client has a row %s after its rollout", time.Since(began).Round(time.Millisecond))
	u.run("meshctl check --context cluster1")
	u.run(`kubectl --context cluster1 label namespace sample --overwrite istio-injection=enabled istio.io/rev-
kubectl --context cluster1 rollout restart -n sample deployment client
kubectl --context cluster1 rollout status -n sample deployment client --timeout=5m
meshctl uninstall --context cluster1 --revision canary`)
}

// testCheck: meshctl check names a control plane that does not answer, a proxy that refuses its
// configuration, and a pod whose proxy is not connected.
func (u *user) testCheck(t *testing.T) {
	finds := func(what, want string) {
		t.Helper()
		harness.Eventually(t, loadTimeout, what+" in meshctl check", func() error {
			out, err := u.try("", "meshctl check --context cluster2")
			if exit, failed := errors.AsType[*exec.ExitError](err); !failed || exit.ExitCode() != 3 || !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	serve := u.processesOf(u.clusters.Nodes[1], meshctlPath, "serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	finds("a silent control plane", `(?m)^Error +control plane istiod-\S+ `)
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := u.try(`{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: broken, namespace: sample}, spec: {workloadSelector: {labels: {app: client}}, configPatches: [
  {applyTo: HTTP_FILTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: INSERT_FIRST, value: {name: broken, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "("}}}}}]}}`,
		"kubectl --context cluster2 apply -f -"); err != nil {
		t.Fatal(err)
	}
	finds("a refused configuration", `(?m)^Error +EnvoyFilter sample/broken +.*client-`)
	u.run("kubectl --context cluster2 delete envoyfilter broken -n sample")
	heal := u.drop(t, 1, "prerouting", "tcp dport 15012")
	finds("a proxy that is not connected", `(?m)^Error +Pod sample/client-\S+ +its proxy is connected to no control plane`)
	heal()
	harness.Eventually(t, loadTimeout, "nothing in meshctl check", func() error {
		_, err := u.try("", "meshctl check --context cluster2")
		return err
	})
}

// joinNetworks lets the pods of both clusters reach each other.
func (u *user) joinNetworks(t *testing.T) {
	t.Helper()
	for i, n := range u.clusters.Nodes {
		other := u.clusters.Nodes[1-i]
		in := []string{"-t", strconv.Itoa(u.clusters.PIDs[i]), "-n"}
		for _, command := range []string{
			"nft delete chain ip node in",
			"nft insert rule ip node out ip saddr " + n.Pods + " ip daddr " + other.Pods + " accept",
			"ip route add " + other.Pods + " via " + other.IP,
		} {
			if err := runIn("", "nsenter", append(in, strings.Fields(command)...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// sample runs the service and the client of examples/two-clusters in both clusters.
func (u *user) sample() {
	u.t.Helper()
	u.run(`for c in cluster1 cluster2; do
  kubectl --context $c create namespace sample
  kubectl --context $c label namespace sample istio-injection=enabled
  (cd examples/two-clusters/$c && kubectl --context $c apply -f 4-helloworld.yaml -f 5-client.yaml)
  kubectl --context $c wait -n sample --for=condition=Available --timeout=5m --all deployments
done`)
}

// TestSingleNetwork: clusters whose pods reach each other need no gateway, and no network.
func TestSingleNetwork(t *testing.T) {
	if !*faults {
		t.Skip("takes some minutes: make e2e-faults")
	}
	u := newUser(t)
	u.joinNetworks(t)
	u.run(`meshctl certs root-ca --out certs
meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2
for c in cluster1 cluster2; do
  meshctl install --context $c --cluster-id $c --mesh-id mesh1 --crds --ca-dir certs/$c
done
meshctl multicluster link cluster1 cluster2`)
	u.sample()
	loads := u.loads(t, 2)
	moreOfBoth(loads)
	for i, c := range names {
		out := u.run("meshctl pc endpoints deploy/client.sample --context " + c + " --envoy-cluster 'outbound|5000||helloworld.sample.svc.cluster.local'")
		for _, n := range u.clusters.Nodes {
			if pods := strings.TrimSuffix(n.Pods, "0/24"); !strings.Contains(out, pods) {
				t.Errorf("%s: no endpoint in %s:\n%s", c, n.Pods, out)
			}
		}
		if n := loads[i].more(1000); n.Answers["v1"] < 400 || n.Answers["v2"] < 400 {
			t.Errorf("%s: shares %v", c, n.Answers)
		}
	}
	stop(loads)
}

// Parts of pages that tests run.
const (
	installPage     = "docs/install.md"
	remoteHeading   = "One control plane for several clusters"
	externalHeading = "External control plane"
	mixedPage       = "docs/with-istio.md"
)

var mixedHeadings = []string{"A cluster as in Istio's documentation", "A cluster with meshctl's commands", "Link both"}

// TestParts: the pages have the parts that the tests of other topologies run, which are not run
// always.
func TestParts(t *testing.T) {
	if n := len(blocksOf(t, installPage, remoteHeading)); n != 3 {
		t.Errorf("%s has %d blocks of commands below %q, want primary, remote cluster and removal", installPage, n, remoteHeading)
	}
	if n := len(blocksOf(t, installPage, externalHeading)); n != 4 {
		t.Errorf("%s has %d blocks of commands below %q, want control plane, configuration, status and removal", installPage, n, externalHeading)
	}
	for _, heading := range mixedHeadings {
		blocksOf(t, mixedPage, heading)
	}
	if n := len(blocks(t)); n < mostCommands-1 {
		t.Errorf("%s has %d blocks of commands", page, n)
	}
}

// identified returns an error unless 20 answers to the client of a cluster name its identity.
func (u *user) identified(cluster string) error {
	out, err := u.call(cluster, "sample", target+"?[1-20]")
	if n := strings.Count(out, "caller: spiffe://cluster.local/ns/sample/sa/client\n"); err == nil && n != 20 {
		err = fmt.Errorf("%d of 20 answers name the identity of the client:\n%s", n, out)
	}
	return err
}

// startPlainClient starts a client without a proxy in a cluster.
func (u *user) startPlainClient(t *testing.T, cluster string) {
	t.Helper()
	if _, err := u.try(plainClient, "kubectl --context "+cluster+" apply -f -"); err != nil {
		t.Fatal(err)
	}
	u.run("kubectl --context " + cluster + " rollout status -n plain deployment client --timeout=5m")
}

// TestPrimaryRemote: cluster2 has no control plane. Its pods get their proxies, certificates
// and configuration from the control plane of cluster1, as docs/install.md describes.
func TestPrimaryRemote(t *testing.T) {
	if !*faults {
		t.Skip("takes some minutes: make e2e-faults")
	}
	u := newUser(t)
	commands := blocksOf(t, installPage, remoteHeading)
	began := time.Now()
	for _, block := range commands[:2] {
		u.run(block)
		t.Logf("after %s:\n%s", time.Since(began).Round(time.Second), block)
	}
	u.sample()
	t.Logf("pods after %s", time.Since(began).Round(time.Second))
	loads := u.loads(t, 2)
	moreOfBoth(loads)
	for i, c := range names {
		if n := loads[i].more(1000); n.Answers["v1"] < 400 || n.Answers["v2"] < 400 {
			t.Errorf("%s: shares %v", c, n.Answers)
		}
		if err := u.identified(c); err != nil {
			t.Errorf("%s: %v", c, err)
		}
		u.run("meshctl check --context " + c)
	}
	u.run("meshctl remote-clusters --context cluster1 --wait")
	// The control plane configures the proxies of both clusters.
	out := u.run("meshctl proxy-status --context cluster1")
	for _, c := range names {
		if n := strings.Count(out, c); n < 3 {
			t.Errorf("%d proxies of %s are connected, want the gateway, client and helloworld:\n%s", n, c, out)
		}
	}
	if out := u.run("kubectl --context cluster2 get pods -n istio-system -o name"); strings.Contains(out, "istiod") {
		t.Errorf("a control plane in cluster2:\n%s", out)
	}
	// Policies of cluster1 apply in cluster2.
	if _, err := u.try(strictPolicy, "kubectl --context cluster1 apply -f -"); err != nil {
		t.Fatal(err)
	}
	u.startPlainClient(t, "cluster2")
	u.refusesPlaintext(t, "cluster2")
	// Pods of cluster2 keep their configuration without the control plane, and get changes
	// when it is back.
	u.kill("/usr/local/bin/meshctl", "serve")
	u.run("kubectl --context cluster1 wait -n istio-system --for=condition=Available deployment/istiod --timeout=5m")
	u.run("kubectl --context cluster2 scale -n sample deployment helloworld-v2 --replicas=2")
	for _, c := range names {
		want := map[string]int{"cluster1": 2, "cluster2": 3}[c] // a gateway, and pods of the own cluster
		harness.Eventually(t, moved, "the new pod in "+c, func() error {
			n, err := u.endpoints(c)
			if err == nil && n != want {
				err = fmt.Errorf("%d endpoints, want %d", n, want)
			}
			return err
		})
	}
	moreOfBoth(loads)
	stop(loads)
	u.run("kubectl --context cluster2 delete namespace plain --timeout=3m\n" + commands[2])
	harness.Eventually(t, moved, "only answers of v1", func() error {
		out, err := u.call("cluster1", "sample", target+"?[1-20]")
		if n := strings.Count(out, "version: v1"); err == nil && n != 20 {
			err = fmt.Errorf("%d of 20 answers of v1", n)
		}
		return err
	})
	harness.Eventually(t, moved, "cluster2 without the mesh", func() error { return u.withoutMesh("cluster2") })
}

// TestExternalControlPlane: the control plane runs in cluster1, and cluster2 has the pods and
// the configuration of the mesh, as docs/install.md describes.
func TestExternalControlPlane(t *testing.T) {
	if !*faults {
		t.Skip("takes some minutes: make e2e-faults")
	}
	u := newUser(t)
	commands := blocksOf(t, installPage, externalHeading)
	if _, err := u.try("", "meshctl install --context cluster1 --cluster-id cluster1 --config-cluster cluster2"); err == nil {
		t.Error("an external control plane was installed without the kubeconfig of the other cluster")
	}
	began := time.Now()
	u.run(commands[0])
	address := strings.TrimSpace(u.run(commands[1] + "\necho $address"))
	address = address[strings.LastIndexByte(address, '\n')+1:]
	t.Logf("both are installed after %s, the control plane is at %s", time.Since(began).Round(time.Second), address)
	u.run(`kubectl --context cluster2 create namespace sample
kubectl --context cluster2 label namespace sample istio-injection=enabled
(cd examples/two-clusters/cluster2 && kubectl --context cluster2 apply -f 4-helloworld.yaml -f 5-client.yaml)
kubectl --context cluster2 wait -n sample --for=condition=Available --timeout=5m --all deployments`)
	harness.Eventually(t, moved, "answers with the identity of the client", func() error { return u.identified("cluster2") })
	for _, c := range names {
		u.run("meshctl check --context " + c)
	}
	harness.Eventually(t, moved, "a proxy of cluster2", func() error { // one of two replicas answers
		if out, err := u.try("", "address="+address+"\n"+commands[2]); err != nil || !strings.Contains(out, "cluster2") {
			return fmt.Errorf("%w:\n%s", err, out)
		}
		return nil
	})
	if out := u.run("kubectl --context cluster2 get pods -n istio-system -o name"); out != "" {
		t.Errorf("pods beside the configuration in cluster2:\n%s", out)
	}
	// Policies of cluster2 apply, and its webhook refuses wrong ones.
	unknown := strings.Replace(strictPolicy, "STRICT", "STRICTLY", 1)
	if out, err := u.try(unknown, "kubectl --context cluster2 apply -f -"); err == nil {
		t.Errorf("a policy with an unknown mode was accepted: %s", out)
	}
	if _, err := u.try(strictPolicy, "kubectl --context cluster2 apply -f -"); err != nil {
		t.Fatal(err)
	}
	u.startPlainClient(t, "cluster2")
	u.refusesPlaintext(t, "cluster2")
	// New pods get certificates of the CA in cluster1 after the control plane was replaced.
	u.run(`kubectl --context cluster1 rollout restart -n istio-system deployment istiod
kubectl --context cluster1 rollout status -n istio-system deployment istiod --timeout=5m
kubectl --context cluster2 rollout restart -n sample deployment client
kubectl --context cluster2 rollout status -n sample deployment client --timeout=5m`)
	harness.Eventually(t, moved, "answers after the restart", func() error { return u.identified("cluster2") })
	if out := u.run("kubectl --context cluster2 get secrets -n istio-system -o name"); strings.Contains(out, "cacerts") || strings.Contains(out, "ca-secret") {
		t.Errorf("the signing CA is in cluster2:\n%s", out)
	}
	u.run("kubectl --context cluster2 delete namespace plain --timeout=3m\nkubectl --context cluster2 delete peerauthentication default -n istio-system\n" + commands[3])
	for _, c := range names {
		harness.Eventually(t, moved, c+" without the mesh", func() error { return u.withoutMesh(c) })
	}
}

// TestWithIstio: cluster1 has the objects of Istio's documentation, and cluster2 has
// the objects of meshctl's commands, as docs/with-istio.md describes. Both are one mesh.
func TestWithIstio(t *testing.T) {
	if !*faults {
		t.Skip("takes some minutes: make e2e-faults")
	}
	u := newUser(t)
	began := time.Now()
	for _, heading := range mixedHeadings {
		for _, block := range blocksOf(t, mixedPage, heading) {
			out := u.run(block)
			t.Logf("after %s: %s\n%s", time.Since(began).Round(time.Second), heading, out)
		}
	}
	u.sample()
	loads := u.loads(t, 2)
	moreOfBoth(loads)
	for i, c := range names {
		if n := loads[i].more(1000); n.Answers["v1"] < 400 || n.Answers["v2"] < 400 {
			t.Errorf("%s: shares %v", c, n.Answers)
		}
		if err := u.identified(c); err != nil {
			t.Errorf("%s: %v", c, err)
		}
		u.run("meshctl check --context " + c)
		out := u.run("meshctl pc bootstrap deploy/client.sample --context " + c + " -o json")
		for _, field := range []string{`"CLUSTER_ID": "` + c + `"`, `"NETWORK": "network` + strings.TrimPrefix(c, "cluster") + `"`, `"MESH_ID": "mesh1"`} {
			if !strings.Contains(strings.ReplaceAll(out, `":"`, `": "`), field) {
				t.Errorf("%s: no node metadata %s:\n%s", c, field, out)
			}
		}
	}
	stop(loads)
	// Removing the Secret of Istio's form removes the cluster.
	u.run("kubectl --context cluster2 delete secret istio-remote-secret-cluster1 -n istio-system")
	harness.Eventually(t, moved, "only answers of v2", func() error {
		out, err := u.call("cluster2", "sample", target+"?[1-20]")
		if n := strings.Count(out, "version: v2"); err == nil && n != 20 {
			err = fmt.Errorf("%d of 20 answers of v2", n)
		}
		return err
	})
}

// TestThreeClusters: three clusters with three networks, each linked with the others. Each
// version answers a third of the requests from each cluster, clients find services of the
// other clusters by name, and the rest stays whole when a cluster leaves.
func TestThreeClusters(t *testing.T) {
	if !*faults {
		t.Skip("takes some minutes: make e2e-faults")
	}
	u := newUserOf(t, three)
	began := time.Now()
	u.run(`meshctl certs root-ca --out certs
meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2 cluster3
for n in 1 2 3; do
  meshctl install --context cluster$n --cluster-id cluster$n --network network$n --mesh-id mesh1 \
    --crds --east-west-gateway --ca-dir certs/cluster$n
done
meshctl multicluster link cluster1 cluster2 cluster3`)
	t.Logf("linked after %s", time.Since(began).Round(time.Second))
	u.run(`for n in 1 2 3; do
  mkdir app$n
  sed "s/helloworld-v[12]/helloworld-v$n/; s/version: v[12]/version: v$n/; s/examples-helloworld-v$n/examples-helloworld-v2/
    s/- name: helloworld$/&\n          env: [{name: SERVICE_VERSION, value: v$n}]/" examples/two-clusters/cluster2/4-helloworld.yaml > app$n/helloworld.yaml
  cp examples/two-clusters/cluster2/5-client.yaml app$n
  kubectl --context cluster$n create namespace sample
  kubectl --context cluster$n label namespace sample istio-injection=enabled
  kubectl --context cluster$n apply -f app$n
done
for c in cluster1 cluster2 cluster3; do kubectl --context $c wait -n sample --for=condition=Available --timeout=5m --all deployments; done`)
	t.Logf("pods after %s", time.Since(began).Round(time.Second))
	versions := []string{"v1", "v2", "v3"}
	// answersOf waits until a client gets answers of exactly these versions.
	answersOf := func(cluster string, want ...string) {
		t.Helper()
		harness.Eventually(t, moved, fmt.Sprintf("answers of %v in %s", want, cluster), func() error {
			out, err := u.call(cluster, "sample", target+"?[1-60]")
			if err != nil {
				return err
			}
			for _, v := range versions {
				if n := strings.Count(out, "version: "+v); (n > 0) != slices.Contains(want, v) {
					return fmt.Errorf("%d answers of %s", n, v)
				}
			}
			return nil
		})
	}
	const requests = 3000 // 6 % are more than three standard deviations
	for _, c := range three {
		answersOf(c, versions...)
		out, err := u.call(c, "sample", fmt.Sprintf("%s?[1-%d]", target, requests))
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, v := range versions {
			counts[v] = strings.Count(out, "version: "+v)
			if share := requests / 3; counts[v] < share*90/100 || counts[v] > share*110/100 {
				t.Errorf("%s: %d answers of %s, want a third of %d", c, counts[v], v, requests)
			}
		}
		if n := strings.Count(out, "caller: spiffe://cluster.local/ns/sample/sa/client\n"); n != requests {
			t.Errorf("%s: %d of %d answers name the identity of the client", c, n, requests)
		}
		t.Logf("%s: %v", c, counts)
		u.run("meshctl remote-clusters --wait --context " + c)
		u.run("meshctl check --context " + c)
	}
	// A service that only cluster3 has.
	if _, err := u.try("{apiVersion: v1, kind: Service, metadata: {name: only3, namespace: sample}, spec: {selector: {app: helloworld}, ports: [{name: http, port: 5000}]}}",
		"kubectl --context cluster3 apply -f -"); err != nil {
		t.Fatal(err)
	}
	for _, c := range names {
		u.run("kubectl --context " + c + ` patch deployment client -n sample -p '{"spec": {"template": {"metadata": {"annotations":
  {"proxy.istio.io/config": "{\"proxyMetadata\": {\"ISTIO_META_DNS_CAPTURE\": \"true\"}}"}}}}}'
kubectl --context ` + c + ` rollout status -n sample deployment client --timeout=5m`)
		harness.Eventually(t, moved, "answers of only3 in "+c, func() error {
			out, err := u.call(c, "sample", "only3.sample:5000/hello")
			if err == nil && !strings.Contains(out, "version: v3") {
				err = fmt.Errorf("answer %q", out)
			}
			return err
		})
	}
	// cluster3 leaves: nobody reads it, and it reads nobody.
	loads := u.loads(t, 2)
	u.run(`meshctl remote-secret delete cluster3 --to cluster1,cluster2 --revoke-in cluster3
meshctl remote-secret delete cluster1 --to cluster3
meshctl remote-secret delete cluster2 --to cluster3`)
	answersOf("cluster1", "v1", "v2")
	answersOf("cluster2", "v1", "v2")
	answersOf("cluster3", "v3")
	stop(loads)
}
