package source_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// TestDestinationRuleRefusals has a fault for each check of a DestinationRule, as the
// content of spec besides the host.
func TestDestinationRuleRefusals(t *testing.T) {
	t.Parallel()
	const policy = "  trafficPolicy:\n    "
	lb, pool, tls := policy+"loadBalancer: ", policy+"connectionPool: ", policy+"tls: "
	c := &source.Converter{Cluster: "c"}
	outlier, localities := policy+"outlierDetection: ", policy+"loadBalancer: {localityLbSetting: "
	for name, tt := range map[string]struct{ spec, want string }{
		"exportTo":            {"  exportTo: [A]", `spec.exportTo[0]: "A" is neither a namespace nor one of * .`},
		"selector":            {"  workloadSelector: {matchLabels: {a: '*'}}", "spec.workloadSelector.matchLabels[a]: wildcards and empty names are not allowed"},
		"subset labels":       {"  subsets: [{name: a, labels: {'': b}}]", "spec.subsets[0].labels[]: wildcards and empty names are not allowed"},
		"subset policy":       {"  subsets: [{name: a, trafficPolicy: {retryBudget: {percent: 101}}}]", "spec.subsets[0].trafficPolicy.retryBudget.percent: 101 is not a percentage"},
		"budget interval":     {policy + "retryBudget: {budgetInterval: 0s}", "spec.trafficPolicy.retryBudget.budgetInterval: 0s is too short: want at least 1ms"},
		"tunnel host":         {policy + "tunnel: {targetHost: a_b, targetPort: 1}", `spec.trafficPolicy.tunnel.targetHost: "a_b" is neither a host name nor an IP address`},
		"tunnel port":         {policy + "tunnel: {targetHost: a}", "spec.trafficPolicy.tunnel.targetPort: 0 is not a port: want 1 to 65535"},
		"tunnel protocol":     {"  subsets: [{name: a, trafficPolicy: {tunnel: {protocol: GET, targetHost: '::1', targetPort: 1}}}]", `spec.subsets[0].trafficPolicy.tunnel.protocol: "GET" is none of CONNECT, POST`},
		"port":                {policy + "portLevelSettings: [{port: {number: 0}}]", "spec.trafficPolicy.portLevelSettings[0].port.number: 0 is not a port: want 1 to 65535"},
		"port twice":          {policy + "portLevelSettings: [{port: {number: 1}}, {port: {number: 1}}]", "spec.trafficPolicy.portLevelSettings[1].port.number: 1 is given twice"},
		"port policy":         {policy + "portLevelSettings: [{port: {number: 1}, tls: {mode: MUTUAL}}]", "spec.trafficPolicy.portLevelSettings[0].tls: MUTUAL needs a credentialName, or clientCertificate and privateKey"},
		"hash key":            {lb + "{consistentHash: {}}", "spec.trafficPolicy.loadBalancer.consistentHash: has no key: want one of httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName"},
		"cookie":              {lb + "{consistentHash: {httpCookie: {ttl: 1s}}}", "spec.trafficPolicy.loadBalancer.consistentHash.httpCookie.name: is missing"},
		"hash header":         {lb + "{consistentHash: {httpHeaderName: ''}}", `spec.trafficPolicy.loadBalancer.consistentHash.httpHeaderName: "" is not the name of a header`},
		"hash header name":    {lb + "{consistentHash: {httpHeaderName: a b}}", `spec.trafficPolicy.loadBalancer.consistentHash.httpHeaderName: "a b" is not the name of a header`},
		"hash query":          {lb + "{consistentHash: {httpQueryParameterName: ''}}", "spec.trafficPolicy.loadBalancer.consistentHash.httpQueryParameterName: is empty"},
		"cookie age":          {lb + "{consistentHash: {httpCookie: {name: a, ttl: -1s}}}", "spec.trafficPolicy.loadBalancer.consistentHash.httpCookie.ttl: -1s is negative"},
		"ring":                {lb + "{consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: 9000000}}}", "spec.trafficPolicy.loadBalancer.consistentHash.ringHash.minimumRingSize: 9000000 is more than 8388608"},
		"maglev":              {lb + "{consistentHash: {useSourceIp: true, maglev: {tableSize: 10}}}", "spec.trafficPolicy.loadBalancer.consistentHash.maglev.tableSize: 10 is not a prime number up to 5000011"},
		"warmup":              {lb + "{warmup: {aggression: 2}}", "spec.trafficPolicy.loadBalancer.warmup.duration: is missing"},
		"warmup duration":     {lb + "{warmup: {duration: 0s}}", "spec.trafficPolicy.loadBalancer.warmup.duration: 0s is too short: want at least 1ms"},
		"warmup percent":      {lb + "{warmup: {duration: 1s, minimumPercent: 101}}", "spec.trafficPolicy.loadBalancer.warmup.minimumPercent: 101 is not a percentage"},
		"aggression":          {lb + "{warmup: {duration: 1s, aggression: 0}}", "spec.trafficPolicy.loadBalancer.warmup.aggression: 0 is not above 0"},
		"old warmup":          {lb + "{warmupDurationSecs: 0s}", "spec.trafficPolicy.loadBalancer.warmupDurationSecs: 0s is too short: want at least 1ms"},
		"connections":         {pool + "{tcp: {maxConnections: -1}}", "spec.trafficPolicy.connectionPool.tcp.maxConnections: -1 is negative"},
		"connect timeout":     {pool + "{tcp: {connectTimeout: 0s}}", "spec.trafficPolicy.connectionPool.tcp.connectTimeout: 0s is too short: want at least 1ms"},
		"connection duration": {pool + "{tcp: {maxConnectionDuration: 0s}}", "spec.trafficPolicy.connectionPool.tcp.maxConnectionDuration: 0s is too short: want at least 1ms"},
		"TCP idle timeout":    {pool + "{tcp: {idleTimeout: -1s}}", "spec.trafficPolicy.connectionPool.tcp.idleTimeout: -1s is too short: want at least 0s"},
		"keepalive time":      {pool + "{tcp: {tcpKeepalive: {time: 0.5s}}}", "spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.time: 500ms is too short: want at least 1s"},
		"keepalive interval":  {pool + "{tcp: {tcpKeepalive: {interval: 0s}}}", "spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.interval: 0s is too short: want at least 1s"},
		"pending requests":    {pool + "{http: {http1MaxPendingRequests: -1}}", "spec.trafficPolicy.connectionPool.http.http1MaxPendingRequests: -1 is negative"},
		"requests":            {pool + "{http: {http2MaxRequests: -1}}", "spec.trafficPolicy.connectionPool.http.http2MaxRequests: -1 is negative"},
		"connection's requests": {
			pool + "{http: {maxRequestsPerConnection: -1}}", "spec.trafficPolicy.connectionPool.http.maxRequestsPerConnection: -1 is negative",
		},
		"retries":            {pool + "{http: {maxRetries: -1}}", "spec.trafficPolicy.connectionPool.http.maxRetries: -1 is negative"},
		"streams":            {pool + "{http: {maxConcurrentStreams: -1}}", "spec.trafficPolicy.connectionPool.http.maxConcurrentStreams: -1 is negative"},
		"idle timeout":       {pool + "{http: {idleTimeout: -1s}}", "spec.trafficPolicy.connectionPool.http.idleTimeout: -1s is too short: want at least 0s"},
		"half a keepalive":   {pool + "{http: {http2KeepAlive: {interval: 1s}}}", "spec.trafficPolicy.connectionPool.http.http2KeepAlive: needs an interval and a timeout"},
		"HTTP/2 interval":    {pool + "{http: {http2KeepAlive: {interval: 0s, timeout: 1s}}}", "spec.trafficPolicy.connectionPool.http.http2KeepAlive.interval: 0s is too short: want at least 1ms"},
		"HTTP/2 timeout":     {pool + "{http: {http2KeepAlive: {interval: 1s, timeout: 0s}}}", "spec.trafficPolicy.connectionPool.http.http2KeepAlive.timeout: 0s is too short: want at least 1ms"},
		"outlier code":       {outlier + "{outlierDetectionHttpErrorCodes: [600]}", "spec.trafficPolicy.outlierDetection.outlierDetectionHttpErrorCodes[0]: 600 is not a status of HTTP"},
		"outlier interval":   {outlier + "{interval: 0s}", "spec.trafficPolicy.outlierDetection.interval: 0s is too short: want at least 1ms"},
		"ejection time":      {outlier + "{baseEjectionTime: 0s}", "spec.trafficPolicy.outlierDetection.baseEjectionTime: 0s is too short: want at least 1ms"},
		"ejection percent":   {outlier + "{maxEjectionPercent: 101}", "spec.trafficPolicy.outlierDetection.maxEjectionPercent: 101 is not a percentage"},
		"health percent":     {outlier + "{minHealthPercent: -1}", "spec.trafficPolicy.outlierDetection.minHealthPercent: -1 is not a percentage"},
		"mesh and files":     {tls + "{mode: ISTIO_MUTUAL, caCertificates: /a}", "spec.trafficPolicy.tls: ISTIO_MUTUAL uses the certificates of the mesh: it takes no others"},
		"MUTUAL":             {tls + "{mode: MUTUAL, clientCertificate: /a}", "spec.trafficPolicy.tls: MUTUAL needs a credentialName, or clientCertificate and privateKey"},
		"Secret":             {tls + "{mode: SIMPLE, credentialName: a/b}", `spec.trafficPolicy.tls.credentialName: "a/b" is neither the name of a Secret nor configmap://NAMESPACE/NAME`},
		"ConfigMap":          {tls + "{mode: SIMPLE, credentialName: 'configmap://a'}", `spec.trafficPolicy.tls.credentialName: "configmap://a" has not the form configmap://NAMESPACE/NAME`},
		"key of a ConfigMap": {tls + "{mode: MUTUAL, credentialName: 'configmap://a/b'}", "spec.trafficPolicy.tls.credentialName: MUTUAL needs a Secret: a ConfigMap has no key"},
		"relative path":      {tls + "{mode: SIMPLE, caCertificates: a}", `spec.trafficPolicy.tls.caCertificates: "a" is not an absolute path`},
		"tilde":              {tls + "{mode: SIMPLE, caCertificates: /a~}", `spec.trafficPolicy.tls.caCertificates: "/a~" contains ~`},
		"empty SAN":          {tls + "{mode: SIMPLE, subjectAltNames: [a, '']}", "spec.trafficPolicy.tls.subjectAltNames[1]: is empty"},
		"server name":        {tls + "{mode: SIMPLE, sni: 'a b'}", `spec.trafficPolicy.tls.sni: "a b" is not a server name`},
		"both kinds":         {localities + "{distribute: [{from: a, to: {b: 100}}], failover: [{from: a, to: b}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting: has distribute and failover: want one of them"},
		"many labels":        {localities + "{failoverPriority: [" + strings.Repeat("a, ", 16) + "a]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.failoverPriority: has 17 labels: at most 16"},
		"failover label":     {localities + "{failoverPriority: [a=b=c]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.failoverPriority[0]: "a=b=c" is neither a label nor label=value`},
		"failover to":        {localities + "{failover: [{from: a}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]: needs from and to"},
		"failover to itself": {localities + "{failover: [{from: a, to: a}]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]: from and to are both "a"`},
		"failover pattern":   {localities + "{failover: [{from: a, to: '*'}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]: from and to are names of regions, without *"},
		"failover twice":     {localities + "{failover: [{from: a, to: b}, {from: a, to: c}]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.failover[1].from: "a" is given twice`},
		"distribute from":    {localities + "{distribute: [{to: {a: 100}}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].from: is missing"},
		"distribute sum":     {localities + "{distribute: [{from: a, to: {a: 90}}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to: the sum of the percentages is 90: want 100"},
		"distribute nothing": {localities + "{distribute: [{from: a, to: {a: 0, b: 100}}]}}", "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to[a]: is 0: leave the locality out"},
		"locality":           {localities + "{distribute: [{from: a, to: {'*/b': 100}}]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to: "*/b" is not of the form region/zone/subzone, which may end in *`},
		"overlap":            {localities + "{distribute: [{from: a, to: {b/*: 50, b/c: 50}}]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to: "b/c" overlaps with "b/*"`},
		"overlap of sources": {localities + "{distribute: [{from: a/b, to: {b: 100}}, {from: a, to: {b: 100}}]}}", `spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[1].from: "a" overlaps with "a/b"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.Decode(objects(t, ruleHead+"  host: a\n"+tt.spec)[0], snapshot.Place{})
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestMeshTrafficPolicyRefusals checks the settings of MeshConfig and of Sidecars that
// DestinationRules have, too.
func TestMeshTrafficPolicyRefusals(t *testing.T) {
	t.Parallel()
	c := &source.Converter{Cluster: "c"}
	for in, want := range map[string]string{
		meshHead + "  mesh: |\n    localityLbSetting: {failover: [{from: a, to: a}]}":                              `data.mesh: localityLbSetting.failover[0]: from and to are both "a"`,
		meshHead + "  mesh: |\n    tcpKeepalive: {time: 0s}":                                                       "data.mesh: tcpKeepalive.time: 0s is too short: want at least 1s",
		sidecarHead + "  inboundConnectionPool: {tcp: {maxConnections: -1}}":                                       "spec.inboundConnectionPool.tcp.maxConnections: -1 is negative",
		sidecarHead + "  ingress: [{port: {number: 1, protocol: HTTP}, connectionPool: {http: {maxRetries: -1}}}]": "spec.ingress[0].connectionPool.http.maxRetries: -1 is negative",
	} {
		if _, err := c.Decode(objects(t, in)[0], snapshot.Place{}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestFilesBesideSecrets: files beside a Secret are reported, wherever the settings are. Servers get
// any name that TLS can send.
func TestFilesBesideSecrets(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: a}\nspec: {host: b, "
	const both = "tls: {mode: MUTUAL, credentialName: a, clientCertificate: /c, privateKey: /k, caCertificates: /a, sni: outbound_.80_._.b.c}"
	const files = "tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k, sni: 10.0.0.1}"
	filesOf := func(at string) (out []string) {
		for _, name := range []string{"clientCertificate", "privateKey", "caCertificates"} {
			out = append(out, "spec."+at+".tls."+name)
		}
		return out
	}
	for spec, want := range map[string][]string{
		"trafficPolicy: {" + files + "}":                                          nil,
		"trafficPolicy: {" + both + "}":                                           filesOf("trafficPolicy"),
		"trafficPolicy: {portLevelSettings: [{port: {number: 1}, " + both + "}]}": filesOf("trafficPolicy.portLevelSettings[0]"),
		"subsets: [{name: x, trafficPolicy: {" + both + "}}]":                     filesOf("subsets[0].trafficPolicy"),
	} {
		if got := warningsOf(t, head+spec+"}", fields.Unused); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}

// TestTrafficPages: the objects in docs/traffic-policy.md and docs/traffic.md are valid.
func TestTrafficPages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"traffic-policy.md", "traffic.md"} {
		t.Run(name, func(t *testing.T) { validPage(t, "../../../docs/"+name) })
	}
}

// validPage checks that the objects of a page are valid and have an effect.
func validPage(t *testing.T, file string) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := &source.Converter{Cluster: "c"}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("no YAML")
	}
	for _, b := range blocks {
		text, _, _ := strings.Cut(b, "```")
		for _, v := range objects(t, text) {
			r, err := c.Decode(v, snapshot.Place{})
			if err != nil || len(r.Warnings) > 0 {
				t.Errorf("%v, warnings %v of\n%s", err, r.Warnings, text)
			}
		}
	}
}
