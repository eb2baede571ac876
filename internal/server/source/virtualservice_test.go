package source_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// TestPublicVariables: a route may send what the proxy tells of itself.
func TestPublicVariables(t *testing.T) {
	value := "%ENVIRONMENT(POD_NAME)% %ENVIRONMENT(ISTIO_META_OWNER):9%"
	for _, v := range objects(t, `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: 'n'},
  spec: {hosts: [a], http: [{headers: {request: {set: {x: "`+value+`"}}}, route: [{destination: {host: b}}]}]}}`) {
		if _, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{}); err != nil {
			t.Error(err)
		}
	}
}

// TestVirtualServiceRefusals: an invalid VirtualService is refused with the faulty field.
func TestVirtualServiceRefusals(t *testing.T) {
	t.Parallel()
	const to = "route: [{destination: {host: b}}]"
	http := func(route string) string { return "hosts: [a], http: [{" + route + "}]" }
	match := func(m string) string { return http("match: [{" + m + "}], " + to) }
	for spec, want := range map[string]string{
		"hosts: ['*'], http: [{" + to + "}]":                                     `spec.hosts[0]: "*" would take the requests to every host of all workloads: name gateways, or hosts`,
		"hosts: ['a*'], http: [{" + to + "}]":                                    `spec.hosts[0]: "a*" is not a host name`,
		"hosts: [" + strings.Repeat("a,", 1001) + "], http: [{" + to + "}]":      "spec.hosts: has 1001 entries, at most 1000 are accepted",
		"hosts: [a], gateways: [a/b/c], http: [{" + to + "}]":                    `spec.gateways[0]: "a/b/c" is neither mesh nor the name of a Gateway`,
		"hosts: [a], exportTo: ['~'], http: [{" + to + "}]":                      `spec.exportTo[0]: "~" is neither a namespace nor one of * .`,
		"http: [{delegate: {name: d}}]":                                          "spec.http[0].delegate: a VirtualService to which others delegate cannot delegate",
		"tcp: [{" + to + "}]":                                                    "spec.hosts: is empty: only HTTP routes can be delegated to",
		http("delegate: {name: d}, " + to):                                       "spec.http[0].delegate: does not go with route: use one of them",
		http("delegate: {name: D}"):                                              `spec.http[0].delegate.name: "D" is not the name of a VirtualService`,
		http("redirect: {uri: /}, " + to):                                        "spec.http[0].redirect: does not go with route: use one of them",
		http("redirect: {uri: /}, rewrite: {uri: /}"):                            "spec.http[0].rewrite: does not go with redirect",
		http("directResponse: {status: 200}, fault: {abort: {httpStatus: 500}}"): "spec.http[0].fault: does not go with directResponse",
		http("mirror: {host: a}, mirrors: [{destination: {host: b}}], " + to):    "spec.http[0].mirrors: does not go with mirror: use one of them",

		match("uri: {regex: '('}"):                                         `spec.http[0].match[0].uri.regex: "(" is not a regular expression of RE2: error parsing regexp: missing closing ): ` + "`(`",
		match("uri: {regex: '(?=a)'}"):                                     `spec.http[0].match[0].uri.regex: "(?=a)" is not a regular expression of RE2: error parsing regexp: invalid or unsupported Perl syntax: ` + "`(?=`",
		match("uri: {regex: '*'}"):                                         `spec.http[0].match[0].uri.regex: "*" is not a regular expression of RE2: error parsing regexp: missing argument to repetition operator: ` + "`*`",
		match("uri: {regex: '" + strings.Repeat("a", 4097) + "'}"):         "spec.http[0].match[0].uri.regex: has 4097 bytes, at most 4096 are accepted",
		match(`uri: {regex: '(\pL{100}){9}'}`):                             "spec.http[0].match[0].uri.regex: is too large a regular expression: ",
		match(`uri: {regex: '\x{100}'}`):                                   `spec.http[0].match[0].uri.regex: \x{100} is no byte, and Envoy matches bytes: write the character itself`,
		match(`uri: {regex: 'a[\400b]'}`):                                  `spec.http[0].match[0].uri.regex: \400 is no byte, and Envoy matches bytes: write the character itself`,
		match("uri: {exact: ''}"):                                          "spec.http[0].match[0].uri.exact: is empty",
		match("uri: {prefix: ''}"):                                         "spec.http[0].match[0].uri.prefix: is empty",
		match("headers: {'a b': {exact: a}}"):                              `spec.http[0].match[0].headers[a b]: "a b" is not the name of a header`,
		match(`headers: {a: {exact: "a\nb"}}`):                             "spec.http[0].match[0].headers[a].exact: contains a line break or a zero byte",
		match("headers: {'@request.auth.claims': {exact: a}}"):             "spec.http[0].match[0].headers[@request.auth.claims]: does not name a claim: write @request.auth.claims.NAME or @request.auth.claims[NAME]",
		match("withoutHeaders: {a: {regex: '['}}"):                         `spec.http[0].match[0].withoutHeaders[a].regex: "[" is not a regular expression of RE2: `,
		match("queryParams: {'': {exact: a}}"):                             "spec.http[0].match[0].queryParams[]: has a name of 0 bytes: want 1 to 1024",
		match("port: 70000"):                                               "spec.http[0].match[0].port: 70000 is not a port: want 1 to 65535",
		match("sourceLabels: {a: '*'}"):                                    "spec.http[0].match[0].sourceLabels[a]: wildcards and empty names are not allowed",
		match("sourceLabels: {a: 'b,c'}"):                                  `spec.http[0].match[0].sourceLabels[a]: "b,c" is not the value of a label`,
		match("sourceNamespace: A"):                                        `spec.http[0].match[0].sourceNamespace: "A" is not a namespace`,
		match("gateways: ['~']"):                                           `spec.http[0].match[0].gateways[0]: "~" is neither mesh nor the name of a Gateway`,
		http("match: [{uri: {exact: /a}}], redirect: {prefixRewrite: /b}"): "spec.http[0].match[0].uri: is not a prefix, which prefixRewrite of the redirect needs",

		http("route: [{destination: {host: '*'}}]"):                         `spec.http[0].route[0].destination.host: "*" is not a host`,
		http("route: [{destination: {host: b, port: {number: 0}}}]"):        "spec.http[0].route[0].destination.port.number: 0 is not a port: want 1 to 65535",
		http("route: [{destination: {host: b, subset: 'a|b'}}]"):            `spec.http[0].route[0].destination.subset: "a|b" is not a DNS name`,
		http("route: [{destination: {host: b}}, {destination: {host: c}}]"): "spec.http[0].route: has several destinations, and none has a weight",
		http("timeout: 3, " + to):                                           "spec.http[0].timeout: is 3, want a duration, such as 5s, 100ms or 1m",
		http("timeout: [3s], " + to):                                        "spec.http[0].timeout: is a list, want a duration, such as 5s, 100ms or 1m",
		http("timeout: 3 s, " + to):                                         `spec.http[0].timeout: "3 s" is not a duration, such as 5s, 100ms or 1m`,
		http("match: {uri: {prefix: /}}, " + to):                            "spec.http[0].match: is a mapping, want a list",
		match("uri: /a"):                                                    `spec.http[0].match[0].uri: is "/a", want a mapping`,
		match("headers: {a: b}"):                                            `spec.http[0].match[0].headers.a: is "b", want a mapping`,
		http("redirect: {}"):                                                "spec.http[0].redirect: has none of uri, prefixRewrite, authority, scheme and port",
		http("redirect: {uri: /, redirectCode: 304}"):                       "spec.http[0].redirect.redirectCode: 304 is none of 301, 302, 303, 307 and 308",
		http("redirect: {uri: /, scheme: ftp}"):                             `spec.http[0].redirect.scheme: "ftp" is neither http nor https`,
		http("redirect: {uri: /, prefixRewrite: /}"):                        "spec.http[0].redirect.prefixRewrite: does not go with uri: use one of them",
		http("redirect: {port: 0}"):                                         "spec.http[0].redirect.port: 0 is not a port: want 1 to 65535",
		http("directResponse: {status: 100}"):                               "spec.http[0].directResponse.status: 100 is not a status from 200 to 599",
		http("directResponse: {status: 200, body: {string: '" + strings.Repeat("a", 1<<20+1) + "'}}"): "spec.http[0].directResponse.body: has 1048577 bytes, at most 1048576 are accepted",
		http("rewrite: {}, " + to): "spec.http[0].rewrite: has none of uri, uriRegexRewrite and authority",
		http("rewrite: {uri: /, uriRegexRewrite: {match: a, rewrite: b}}, " + to): "spec.http[0].rewrite.uriRegexRewrite: does not go with uri: use one of them",
		http("rewrite: {uriRegexRewrite: {match: '(a)', rewrite: '\\2'}}, " + to): `spec.http[0].rewrite.uriRegexRewrite.rewrite: "\\2" has a backslash that is not before one of the groups 0 to 1, nor before a backslash`,
		http("timeout: -1s, " + to):                                                                                            "spec.http[0].timeout: -1s is too short: want at least 0s",
		http("timeout: 99999999999s, " + to):                                                                                   "spec.http[0].timeout: is longer than 8760h0m0s",
		http("retries: {attempts: -1}, " + to):                                                                                 "spec.http[0].retries.attempts: -1 is negative",
		http("retries: {retryOn: '5xx'}, " + to):                                                                               "spec.http[0].retries.attempts: is 0, so that there are no retries, but other fields are set",
		http("retries: {attempts: 1, retryOn: '5xx,never'}, " + to):                                                            `spec.http[0].retries.retryOn: "never" is neither a condition of Envoy nor a status`,
		http("retries: {attempts: 1, perTryTimeout: 0.0001s}, " + to):                                                          "spec.http[0].retries.perTryTimeout: 100µs is too short: want at least 1ms",
		http("fault: {}, " + to):                                                                                               "spec.http[0].fault: has neither delay nor abort",
		http("fault: {delay: {percentage: {value: 101}, fixedDelay: 1s}}, " + to):                                              "spec.http[0].fault.delay.percentage: 101 is not a percentage",
		http("fault: {delay: {percent: 1}}, " + to):                                                                            "spec.http[0].fault.delay.fixedDelay: is missing",
		http("fault: {abort: {httpStatus: 99}}, " + to):                                                                        "spec.http[0].fault.abort.httpStatus: 99 is not a status from 200 to 599",
		http("fault: {abort: {grpcStatus: BROKEN}}, " + to):                                                                    `spec.http[0].fault.abort.grpcStatus: "BROKEN" is not a status of gRPC, such as UNAVAILABLE`,
		http("mirror: {}, " + to):                                                                                              "spec.http[0].mirror.host: is missing",
		http("mirror: {host: b}, mirrorPercent: 101, " + to):                                                                   "spec.http[0].mirrorPercent: 101 is not a percentage",
		http("mirrors: [{percentage: {value: 1}}], " + to):                                                                     "spec.http[0].mirrors[0].destination.host: is missing",
		http("corsPolicy: {allowOrigins: [{}]}, " + to):                                                                        "spec.http[0].corsPolicy.allowOrigins[0]: has none of exact, prefix and regex",
		http("corsPolicy: {allowOrigins: [{regex: '*'}]}, " + to):                                                              `spec.http[0].corsPolicy.allowOrigins[0].regex: "*" is not a regular expression of RE2: `,
		http("corsPolicy: {allowMethods: ['G T']}, " + to):                                                                     `spec.http[0].corsPolicy.allowMethods[0]: "G T" is neither a name nor *`,
		http("headers: {request: {set: {'a:b': c}}}, " + to):                                                                   `spec.http[0].headers.request.set[a:b]: "a:b" is not the name of a header`,
		http("headers: {request: {set: {a: '%ENVIRONMENT(DB_PASSWORD)%'}}}, " + to):                                            `spec.http[0].headers.request.set[a]: the environment variable DB_PASSWORD may hold a secret of another workload's proxy: only HOSTNAME, `,
		http("headers: {request: {set: {a: '%ENVIRONMENT(ISTIO_META_TOKEN)%'}}}, " + to):                                       `spec.http[0].headers.request.set[a]: the environment variable ISTIO_META_TOKEN may hold`,
		http("headers: {request: {set: {a: '%FILE_CONTENT(/etc/passwd)%'}}}, " + to):                                           `spec.http[0].headers.request.set[a]: "%FILE_CONTENT(/etc/passwd)%" does not begin with an operator`,
		http(`headers: {request: {set: {a: '%COALESCE({"operators": [{"command": "ENVIRONMENT", "param": "A"}]})%'}}}, ` + to): `spec.http[0].headers.request.set[a]: "%COALESCE(`,
		http("headers: {response: {add: {a: '%FOO%'}}}, " + to):                                                                `spec.http[0].headers.response.add[a]: "%FOO%" does not begin with an operator that Envoy has, such as %REQ(:METHOD)%; write %% for a percent sign`,
		http("headers: {request: {remove: [Host]}}, " + to):                                                                    `spec.http[0].headers.request.remove[0]: "Host" is not the name of a header that can be removed`,

		"hosts: [a.b], tls: [{match: [{sniHosts: [c.d]}], " + to + "}]":                          `spec.tls[0].match[0].sniHosts[0]: "c.d" is in none of the hosts`,
		"hosts: [a.b], tls: [{match: [{sniHosts: [a.b], destinationSubnets: [a]}], " + to + "}]": `spec.tls[0].match[0].destinationSubnets[0]: "a" is neither an IP address nor an address range`,
		"hosts: ['*'], gateways: [g], tls: [{match: [{sniHosts: ['*-eu.b']}], " + to + "}]":      `spec.tls[0].match[0].sniHosts[0]: "*-eu.b" is not a server name, whose wildcard stands for whole labels`,
		"hosts: ['*-.b'], http: [{" + to + "}]":                                                  `spec.hosts[0]: "*-.b" is not a host name`,
		"hosts: [a..], http: [{" + to + "}]":                                                     `spec.hosts[0]: "a.." is not a host name`,
		"hosts: [a], tcp: [{match: [{destinationSubnets: [10.0.0.0/33]}], " + to + "}]":          `spec.tcp[0].match[0].destinationSubnets[0]: "10.0.0.0/33" is neither an IP address nor an address range`,
		"hosts: [a], tcp: [{route: [{destination: {host: b}, weight: -1}]}]":                     "spec.tcp[0].route[0].weight: -1 is negative",
		"hosts: [a], http: [{match: [" + strings.Repeat("{},", 5001) + "], " + to + "}]":         "spec.http: has 5001 routes for 1 hosts: at most 5000, and 100000 for all hosts together, are accepted",
	} {
		for _, v := range objects(t, "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: 'n'}, spec: {"+spec+"}}") {
			_, err := (&source.Converter{Cluster: "c"}).Decode(v, snapshot.Place{})
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%.200s:\n got %v\nwant %s", spec, err, want)
			}
		}
	}
}

// TestServerNames: a server name may be an address, or the name by which proxies call a service of
// another network.
func TestServerNames(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: a}\nspec: {hosts: ['*.b.c', 10.0.0.1], gateways: [g], tls: [{match: [{sniHosts: ["
	for _, name := range []string{"a.b.c", "A.B.C.", "'*.a.b.c'", "outbound_.80_._.a.b.c", "outbound_.80_.v1_.a.b.c", "10.0.0.1"} {
		if got := warningsOf(t, head+name+"]}], route: [{destination: {host: x}}]}]}", fields.Unused); len(got) > 0 {
			t.Errorf("%s: %q has no effect", name, got)
		}
	}
}

// TestHostRewrites: of several fields that replace the host of a request, all but the first are
// reported.
func TestHostRewrites(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: a}\nspec: {hosts: [b], http: [{"
	authority := "headers: {request: {set: {':authority': x}}}"
	for route, want := range map[string][]string{
		"rewrite: {authority: x}, route: [{destination: {host: b}}]":                                                                    nil,
		authority + ", route: [{destination: {host: b}}]":                                                                               nil,
		"rewrite: {authority: x}, " + authority + ", route: [{destination: {host: b}}]":                                                 {"spec.http[0].headers.request.set[:authority]"},
		"rewrite: {authority: x}, route: [{destination: {host: b}, " + authority + "}]":                                                 {"spec.http[0].route[0].headers.request.set[:authority]"},
		"headers: {request: {add: {Host: z}}}, route: [{destination: {host: b}, " + authority + "}]":                                    {"spec.http[0].route[0].headers.request.set[:authority]"},
		"headers: {request: {add: {':Authority': z}, set: {host: x}}}, route: [{destination: {host: b}}]":                               {"spec.http[0].headers.request.add[:Authority]"},
		"rewrite: {authority: x}, route: [{destination: {host: b}, weight: 1, " + authority + "}, {destination: {host: c}, weight: 1}]": nil,
	} {
		if got := warningsOf(t, head+route+"}]}", fields.Unused); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", route, got, want)
		}
	}
}
