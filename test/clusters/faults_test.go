package clusters

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

var faults = flag.Bool("faults", false, "run TestFaults and tests of other topologies, which take half an hour")

const (
	loadTimeout = 3 * time.Minute  // some requests
	stepTimeout = 10 * time.Minute // a step of a rotation
	target      = "helloworld.sample:5000/hello"
	// restarts, rotations and handshakes are the sizes of the faults.
	restarts   = 100
	rotations  = 200
	handshakes = 100_000
	// killInterval is the time between two kills of a replica.
	killInterval = 3 * time.Second
	// certificateTTL is the lifetime of certificates while the root is replaced.
	certificateTTL = time.Minute
)

// TestFaults: the traffic between the clusters of docs/get-started.md goes on through
// faults and changes of everything around it.
func TestFaults(t *testing.T) {
	if !*faults {
		t.Skip("takes half an hour: make e2e-faults")
	}
	u := newUser(t)
	for _, block := range blocks(t) {
		u.run(block)
	}
	for _, c := range names {
		u.run("kubectl --context " + c + ` patch deployment client -n sample -p '{"spec": {"template": {"metadata": {"annotations":
  {"sidecar.istio.io/statsInclusionRegexps": "cluster.*helloworld.*(membership_change|ssl.*|connect_fail|cx_total)"}}}}}'
kubectl --context ` + c + ` rollout status -n sample deployment client --timeout=5m`)
	}
	for _, test := range []struct {
		name string
		run  func(*user, *testing.T)
	}{
		{"server names at the gateway", (*user).testServerNames},
		{"revision by tag", (*user).testTag},
		{"faults that check finds", (*user).testCheck},
		{"rotated credentials", (*user).testRotatedCredentials},
		{"gateway with another address", (*user).testGatewayAddress},
		{"gateway with a host name", (*user).testGatewayName},
		{"API server away", (*user).testAPIServerAway},
		{"slow and lying API server", (*user).testFalseAPIServer},
		{"no file descriptors", (*user).testNoDescriptors},
		{"killed parts", (*user).testKilledParts},
		{"partition", (*user).testPartition},
		{"one replica killed again and again", (*user).testReplicaKilled},
		{"restarted control planes", (*user).testRestarts},
		{"upgrade by revision and back", (*user).testUpgrade},
		{"restarted node", (*user).testRestartedNode},
		{"replaced root", (*user).testReplacedRoot},
		{"full volumes", (*user).testFullVolumes},
		{"removed remote secret, gateway and cluster", (*user).testRemovals},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			test.run(&user{t, u.clusters, u.dir}, t)
			t.Logf("took %s", time.Since(began).Round(time.Second))
		})
	}
}

// loads starts a load in the client of each cluster.
func (u *user) loads(t *testing.T, clients int) []*load {
	t.Helper()
	var out []*load
	for _, c := range names {
		out = append(out, u.load(t, c, "client", target, clients))
	}
	return out
}

// moreOfBoth waits until clients of all clusters have got more answers of both versions.
func moreOfBoth(loads []*load) {
	for _, l := range loads {
		l.until("answers of both versions", both)
	}
}

func stop(loads []*load) {
	for _, l := range loads {
		l.t.Helper()
		l.stop()
	}
}

// testRotatedCredentials: proxies lose no endpoint while the token with which cluster1
// reads cluster2 is replaced.
func (u *user) testRotatedCredentials(t *testing.T) {
	loads := u.loads(t, 2)
	before := map[string]map[string]int{}
	for _, c := range names {
		before[c] = u.stats(t, c, "membership_change")
	}
	for range rotations {
		u.run("meshctl remote-secret rotate --context cluster2 --to cluster1")
	}
	moreOfBoth(loads)
	stop(loads)
	for _, c := range names {
		if after := u.stats(t, c, "membership_change"); !maps.Equal(before[c], after) {
			t.Errorf("%s: the endpoints of helloworld changed %v times, want %v", c, after, before[c])
		}
	}
	t.Logf("%d rotations", rotations)
}

// testRestarts: no request fails while all control planes are killed again and again, and
// start again.
func (u *user) testRestarts(t *testing.T) {
	loads := u.loads(t, 2)
	killed := 0
	for killed < restarts {
		u.allReplicas(t)
		killed += u.kill("/usr/local/bin/meshctl", "serve")
	}
	u.allReplicas(t)
	t.Logf("%d control planes killed", killed)
	moreOfBoth(loads)
	u.changeArrives(t)
	stop(loads)
}

// allReplicas waits until two replicas are available in each cluster.
func (u *user) allReplicas(t *testing.T) {
	t.Helper()
	for _, c := range names {
		harness.Eventually(t, pageTimeout, "replicas of "+c, func() error {
			out, err := u.try("", "kubectl --context "+c+" get deployment istiod -n istio-system -o jsonpath='{.status.availableReplicas}'")
			if err == nil && out != "2" {
				err = fmt.Errorf("%q replicas are available", out)
			}
			return err
		})
	}
}

// changeArrives adds and removes a pod of v1 and waits until the client of cluster1 sees it.
func (u *user) changeArrives(t *testing.T) {
	t.Helper()
	for _, replicas := range []int{2, 1} {
		u.scaleV1(t, replicas)
	}
}

// scaleV1 sets the number of pods of v1 and waits until the client of cluster1 has them.
func (u *user) scaleV1(t *testing.T, replicas int) {
	t.Helper()
	u.run(fmt.Sprintf("kubectl --context cluster1 scale -n sample deployment helloworld-v1 --replicas=%d", replicas))
	harness.Eventually(t, moved, "a changed number of pods", func() error {
		endpoints, err := u.endpoints("cluster1")
		if err == nil && endpoints != replicas+1 { // and the gateway of cluster2
			err = fmt.Errorf("%d endpoints after scaling v1 to %d", endpoints, replicas)
		}
		return err
	})
}

// endpoints returns the number of healthy endpoints of helloworld that the proxy of a client has.
func (u *user) endpoints(cluster string) (int, error) {
	out, err := u.try("", "meshctl pc endpoints deploy/client.sample --context "+cluster+
		" --envoy-cluster 'outbound|5000||helloworld.sample.svc.cluster.local' --status HEALTHY -o csv")
	return strings.Count(out, "\n") - 1, err // without the header
}

// testReplicaKilled: changes arrive, and no request that may be repeated fails, while one of two
// replicas is killed every few seconds. Proxies that lose their control plane learn late that a pod
// ends.
func (u *user) testReplicaKilled(t *testing.T) {
	u.allReplicas(t)
	defer u.retries(t)()
	loads := u.loads(t, 2)
	ctx, end := context.WithCancel(t.Context())
	killed := make(chan int)
	go func() {
		n := 0
		for tick := time.NewTicker(killInterval); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				killed <- n
				return
			}
			for _, node := range u.clusters.Nodes {
				if found := u.processesOf(node, "/usr/local/bin/meshctl", "serve"); len(found) == 2 && syscall.Kill(found[0], syscall.SIGKILL) == nil {
					n++
				}
			}
		}
	}()
	const changes = 10
	for range changes {
		u.changeArrives(t)
	}
	end()
	t.Logf("%d changes of the number of pods arrived while %d replicas were killed", 2*changes, <-killed)
	moreOfBoth(loads)
	stop(loads)
	u.allReplicas(t)
}

// drop makes a node drop packets that a rule of nftables matches, until the returned
// function is called.
func (u *user) drop(t *testing.T, cluster int, hook, rule string) (heal func()) {
	t.Helper()
	in := []string{"-t", strconv.Itoa(u.clusters.PIDs[cluster]), "-n", "nft"}
	if err := runIn(fmt.Sprintf("table ip fault { chain c { type filter hook %s priority -310; %s drop; }; }", hook, rule), "nsenter", append(in, "-f", "-")...); err != nil {
		t.Fatal(err)
	}
	healed := false
	heal = func() {
		if healed {
			return
		}
		healed = true
		if err := runIn("", "nsenter", append(in, "delete", "table", "ip", "fault")...); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(heal)
	return heal
}

// lost waits until the control planes of cluster1 report that they do, or do not, read cluster2.
func (u *user) lost(t *testing.T, want bool) {
	t.Helper()
	harness.Eventually(t, moved, fmt.Sprintf("lost: %v, of cluster2", want), func() error {
		out, err := u.try("", "meshctl remote-clusters --context cluster1 -o json")
		if found := strings.Contains(out, `"lost"`); found != want || out == "" {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// testAPIServerAway: the clients of cluster1 keep the endpoints of cluster2 while its API
// server does not answer, and its proxies keep theirs. What changes meanwhile in cluster1
// arrives in cluster1, and afterwards in both.
func (u *user) testAPIServerAway(t *testing.T) {
	loads := u.loads(t, 2)
	heal := u.drop(t, 1, "prerouting", "tcp dport 6443")
	u.lost(t, true)
	u.changeArrives(t)
	moreOfBoth(loads)
	heal()
	began := time.Now()
	u.lost(t, false)
	t.Logf("cluster2 is read again after %s", time.Since(began).Round(time.Millisecond))
	u.changeArrives(t)
	moreOfBoth(loads)
	stop(loads)
}

// testPartition: while the networks do not reach each other, each cluster answers its
// clients itself if a DestinationRule ejects failed endpoints and a VirtualService
// retries. Afterwards both answer. Without localityLbSetting the clients would not call the
// other cluster before.
func (u *user) testPartition(t *testing.T) {
	defer u.ejecting(t)()
	defer u.retries(t)()
	loads := u.loads(t, 2)
	moreOfBoth(loads)
	heal := u.drop(t, 1, "prerouting", "iifname eth0 ip saddr 10.89.0.1")
	began := time.Now()
	for i, l := range loads {
		own := "v" + strconv.Itoa(i+1)
		l.until("answers of the own cluster", func(t totals) bool { return t.Answers[own] >= 1000 })
	}
	u.lost(t, true)
	t.Logf("partition of %s", time.Since(began).Round(time.Second))
	heal()
	began = time.Now()
	moreOfBoth(loads)
	t.Logf("both clusters answer %s after the partition", time.Since(began).Round(time.Millisecond))
	u.lost(t, false)
	u.changeArrives(t)
	stop(loads)
}

// retries makes clients repeat requests whose connection or endpoint fails, until the
// returned function is called. By default proxies repeat only requests that no endpoint
// has seen, but the connections through a gateway end with its pod. Nothing answers connections to
// a pod that has just ended, and perTryTimeout does not limit the time that these take.
func (u *user) retries(t *testing.T) (end func()) {
	t.Helper()
	u.apply(`
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: helloworld-connections, namespace: sample}, spec: {host: helloworld, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 1s}}}}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: helloworld, namespace: sample}, spec: {hosts: [helloworld], http: [
  {route: [{destination: {host: helloworld}}], timeout: 8s, retries: {attempts: 3, perTryTimeout: 1s, retryOn: "connect-failure,refused-stream,reset,5xx"}}]}}
`)
	for _, c := range names {
		harness.Eventually(t, moved, "retries in "+c, func() error {
			out, err := u.try("", "meshctl pc routes deploy/client.sample --context "+c+" --name 5000 -o json")
			if err == nil && !strings.Contains(out, `"perTryTimeout"`) {
				err = errors.New("the routes have no retries")
			}
			return err
		})
	}
	return func() {
		for _, c := range names {
			if _, err := u.try("", "kubectl --context "+c+" delete -n sample --ignore-not-found virtualservice/helloworld destinationrule/helloworld-connections"); err != nil {
				t.Error(err)
			}
		}
	}
}

// testGatewayAddress: the gateway of cluster2 gets another address, and the old one does
// not answer any more.
func (u *user) testGatewayAddress(t *testing.T) {
	loads := u.loads(t, 2)
	const get = "kubectl --context cluster2 get service istio-eastwestgateway -n istio-system -o jsonpath='{.status.loadBalancer.ingress[0].ip}'"
	was := u.run(get)
	for _, next := range []string{u.clusters.Nodes[1].LBs[19], was} {
		u.run(`kubectl --context cluster2 patch service istio-eastwestgateway -n istio-system --subresource=status --type=merge -p '{"status": {"loadBalancer": {"ingress": [{"ip": "` + next + `"}]}}}'`)
		u.gatewayIs(t, next)
		moreOfBoth(loads)
	}
	stop(loads)
}

// testGatewayName: the gateway of cluster2 has a host name, as with some load balancers, and the
// name gets another address. The old address answers until the clients use the new one.
func (u *user) testGatewayName(t *testing.T) {
	const (
		name  = "gateway.cluster2.example"
		patch = "kubectl --context cluster2 patch service istio-eastwestgateway -n istio-system --subresource=status --type=merge -p "
		get   = " -n istio-system -o jsonpath='{.status.loadBalancer.ingress[0].ip}'"
	)
	loads := u.loads(t, 2)
	was := u.run("kubectl --context cluster2 get service istio-eastwestgateway" + get)
	// Two more load balancers for the pods of the gateway.
	balancers := []string{"balancer-a", "balancer-b"}
	var addresses []string
	for _, b := range balancers {
		if _, err := u.try(`{apiVersion: v1, kind: Service, metadata: {name: `+b+`, namespace: istio-system}, spec: {type: LoadBalancer, selector: {istio: eastwestgateway}, ports: [{name: tls, port: 15443}]}}`,
			"kubectl --context cluster2 apply -f -"); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, moved, "address of "+b, func() error {
			out, err := u.try("", "kubectl --context cluster2 get service "+b+get)
			if err == nil && out == "" {
				err = errors.New("it has none")
			}
			if err == nil {
				addresses = append(addresses, out)
			}
			return err
		})
	}
	corefile := u.run("kubectl --context cluster1 get configmap coredns -n kube-system -o jsonpath='{.data.Corefile}'")
	resolve := func(address string) {
		text := strings.Replace(corefile, ".:53 {\n", fmt.Sprintf(".:53 {\n    template IN A %s {\n        answer \"{{ .Name }} 5 IN A %s\"\n    }\n", name, address), 1)
		if _, err := u.try(text, "kubectl --context cluster1 create configmap coredns -n kube-system --from-file=Corefile=/dev/stdin --dry-run=client -o yaml | kubectl --context cluster1 replace -f -"); err != nil {
			t.Fatal(err)
		}
		u.run("kubectl --context cluster1 rollout restart -n kube-system deployment coredns\nkubectl --context cluster1 rollout status -n kube-system deployment coredns --timeout=5m")
		began := time.Now()
		u.gatewayIs(t, address)
		t.Logf("the clients of cluster1 use %s %s after the change in DNS", address, time.Since(began).Round(time.Second))
		moreOfBoth(loads)
	}
	u.run(patch + `'{"status": {"loadBalancer": {"ingress": [{"hostname": "` + name + `"}]}}}'`)
	resolve(addresses[0])
	resolve(addresses[1])
	u.run("kubectl --context cluster2 delete service -n istio-system " + balancers[0])
	moreOfBoth(loads)
	stop(loads)
	// kube-proxy may forward connections to the first address later than clients use it.
	u.run(patch + `'{"status": {"loadBalancer": {"ingress": [{"ip": "` + was + `"}]}}}'`)
	u.gatewayIs(t, was)
	u.run("kubectl --context cluster2 delete service -n istio-system " + balancers[1])
}

// gatewayIs waits until the proxy of the client of cluster1 has the gateway of cluster2 at an address.
func (u *user) gatewayIs(t *testing.T, address string) {
	t.Helper()
	harness.Eventually(t, moved, "endpoint "+address, func() error {
		out, err := u.try("", "meshctl pc endpoints deploy/client.sample --context cluster1 --envoy-cluster 'outbound|5000||helloworld.sample.svc.cluster.local'")
		if err == nil && !strings.Contains(out, address+":15443") {
			err = fmt.Errorf("the endpoints are\n%s", out)
		}
		return err
	})
}

// testUpgrade: namespaces and gateways move to the control plane of the earlier revision, one after
// the other, and back.
func (u *user) testUpgrade(t *testing.T) {
	if err := u.clusters.Import(t.Context(), filepath.Join(programs, earlier, "image.tar")); err != nil {
		t.Fatal(err)
	}
	defer u.retries(t)()
	loads := u.loads(t, 2)
	for _, revision := range []string{"canary", ""} {
		for n, c := range names {
			label, args, image := "istio.io/rev=default istio-injection-", "", "localhost/meshctl:"+version
			if revision != "" {
				image = "localhost/meshctl:" + earlier
				label, args = "istio.io/rev="+revision+" istio-injection-", "--revision "+revision+" --image "+image
			}
			u.run(fmt.Sprintf(`meshctl install --context %[1]s --cluster-id %[1]s --network network%[2]d --mesh-id mesh1 --crds %[3]s $([ -n "%[3]s" ] || echo --east-west-gateway)
kubectl --context %[1]s label namespace sample --overwrite %[4]s
kubectl --context %[1]s rollout restart -n sample deployment helloworld-v%[2]d
kubectl --context %[1]s rollout status -n sample deployment helloworld-v%[2]d --timeout=5m
kubectl --context %[1]s rollout restart -n istio-system deployment istio-eastwestgateway
kubectl --context %[1]s rollout status -n istio-system deployment istio-eastwestgateway --timeout=5m`, c, n+1, args, label))
			if got := u.run("kubectl --context " + c + " get pods -n sample -l app=helloworld -o jsonpath='{.items[*].spec.initContainers[*].image}'"); !strings.Contains(got, image) {
				t.Errorf("%s: images of proxies %s, want %s", c, got, image)
			}
			moreOfBoth(loads)
		}
	}
	for _, c := range names {
		u.run("meshctl uninstall --context " + c + " --revision canary")
	}
	moreOfBoth(loads)
	stop(loads)
}

// testReplacedRoot: the root of the mesh is replaced while each request makes a connection
// of its own, and no handshake fails.
func (u *user) testReplacedRoot(t *testing.T) {
	u.apply(fmt.Sprintf(`
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: helloworld, namespace: sample}, spec: {host: helloworld, trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}}}
---
{apiVersion: networking.istio.io/v1beta1, kind: ProxyConfig, metadata: {name: short-lived, namespace: istio-system}, spec: {environmentVariables: {SECRET_TTL: %s}}}
`, certificateTTL))
	for _, c := range names {
		u.run("for n in sample istio-system; do kubectl --context " + c + " rollout restart -n $n deployment; done; " +
			"for n in sample istio-system; do kubectl --context " + c + " rollout status -n $n deployment --timeout=5m; done")
	}
	defer func() {
		for _, c := range names {
			u.run("kubectl --context " + c + " delete destinationrule helloworld -n sample")
		}
	}()
	contexts := strings.Join(names, ",")
	loads := u.loads(t, 8)
	step := func(step string) {
		harness.Eventually(t, stepTimeout, step+" of the rotation", func() error {
			_, err := u.try("", "meshctl certs rotate-root "+step+" --ask-proxies --context "+contexts)
			return err
		})
		moreOfBoth(loads)
	}
	began := time.Now()
	step(fmt.Sprintf("start --leaf-ttl %s --propagation 1m", certificateTTL))
	step("next")
	step("finish")
	rotated := time.Since(began)
	made := func(stat string) int {
		n := 0
		for _, c := range names {
			for _, value := range u.stats(t, c, stat) {
				n += value
			}
		}
		return n
	}
	harness.Eventually(t, stepTimeout, "handshakes", func() error {
		if n := made("ssl.handshake") - made("ssl.session_reused"); n < handshakes {
			return fmt.Errorf("%d handshakes with a verified certificate", n)
		}
		return nil
	})
	// The proxies would try again.
	for _, stat := range []string{"ssl.connection_error", "ssl.fail_verify_error", "ssl.fail_verify_san", "upstream_cx_connect_fail"} {
		if n := made(stat); n > 0 {
			t.Errorf("%s: %d", stat, n)
		}
	}
	t.Logf("root replaced in %s; %d handshakes, %d of them resumed a session", rotated.Round(time.Second), made("ssl.handshake"), made("ssl.session_reused"))
	stop(loads)
}
