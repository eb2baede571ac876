package source

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// TestEveryListIsLimited: each list and each map of a spec of Istio, at any depth, has a limit, and
// the fault names it.
func TestEveryListIsLimited(t *testing.T) {
	t.Parallel()
	lists := 0
	for _, k := range kinds {
		istio, ok := k.newObjectOrNil().(*Istio)
		if !ok {
			continue
		}
		var visit func(path string, m protoreflect.Message, depth int)
		visit = func(path string, m protoreflect.Message, depth int) {
			const maxDepth = 6
			if depth > maxDepth || strings.HasPrefix(string(m.Descriptor().FullName()), "google.protobuf.") {
				return
			}
			for i := range m.Descriptor().Fields().Len() {
				f := m.Descriptor().Fields().Get(i)
				field := strings.TrimPrefix(path+"."+f.JSONName(), ".")
				switch {
				case f.IsList():
					lists++
					list := m.NewField(f).List()
					for range entriesOf(f.FullName()) + 1 {
						list.Append(list.NewElement())
					}
					m.Set(f, protoreflect.ValueOfList(list))
					if fault := limitFault(istio); fault == nil || fault.Field != "spec."+field || !fault.Limit {
						t.Errorf("%s: a long %s has the fault %v", k.name, field, fault)
					}
					list = m.Mutable(f).List()
					list.Truncate(1)
					if f.Message() != nil {
						visit(fields.At(field, 0), list.Get(0).Message(), depth+1)
					}
					m.Clear(f)
				case f.IsMap():
					lists++
					entries := m.NewField(f).Map()
					for j := range entriesOf(f.FullName()) + 1 {
						key := protoreflect.ValueOfString(fmt.Sprint(j))
						if f.MapKey().Kind() == protoreflect.Uint32Kind {
							key = protoreflect.ValueOfUint32(uint32(j))
						}
						entries.Set(key.MapKey(), entries.NewValue())
					}
					m.Set(f, protoreflect.ValueOfMap(entries))
					if fault := limitFault(istio); fault == nil || fault.Field != "spec."+field || !fault.Limit {
						t.Errorf("%s: a large %s has the fault %v", k.name, field, fault)
					}
					m.Clear(f)
				case f.Message() != nil && f.Message() != m.Descriptor():
					visit(field, m.Mutable(f).Message(), depth+1)
					m.Clear(f)
				}
			}
		}
		visit("", istio.Spec.ProtoReflect(), 0)
	}
	if lists < 150 {
		t.Errorf("found only %d lists", lists)
	}
}

func (k *kind) newObjectOrNil() any {
	if k.newObject == nil {
		return nil
	}
	return k.newObject()
}

// many returns a JSON list.
func many(n int, format string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i+1))
	}
	return "[" + strings.Join(items, ",") + "]"
}

// TestProducts: the products of lists that become something together are limited, in files and in
// a Kubernetes API. The fault names the place, the numbers and the limit.
func TestProducts(t *testing.T) {
	t.Parallel()
	const entry, virtual = "ServiceEntry", "VirtualService"
	hosts := func(n int) string { return `"hosts":` + many(n, `"h#.example"`) }
	ports := func(n int) string {
		return `,"ports":` + many(n, `{"number":#,"name":"p#","protocol":"TCP"}`)
	}
	body := strings.Repeat("x", 1<<19)
	for name, tc := range map[string]struct{ kind, spec, want string }{
		"entries":   {entry, hosts(10_001) + ports(1), "spec.hosts: has more than 10000 entries"},
		"values":    {virtual, `"hosts":["a"],"tcp":` + many(50, `{"match":`+many(4000, `{"port":#}`)+`}`), "has more than 300000 names and values"},
		"clusters":  {entry, hosts(200) + ports(51) + `,"resolution":"DNS"`, "spec.hosts: has 200 hosts times 51 ports: the product may be at most 10000"},
		"workloads": {entry, hosts(20) + ports(6) + `,"resolution":"STATIC","workloadSelector":{"labels":{"a":"b"}}`, "spec.hosts: has 20 hosts times 6 ports: the product may be at most 100"},
		"endpoints": {entry, hosts(100) + ports(1) + `,"resolution":"STATIC","endpoints":` + many(1001, `{"address":"10.0.0.1"}`), "spec.endpoints: has 100 hosts times 1 ports times 1001 endpoints"},
		"addresses": {entry, hosts(100) + ports(10) + `,"addresses":` + many(101, `"10.0.0.1"`), "spec.addresses: has 100 hosts times 10 ports times 101 addresses"},
		"exports":   {entry, hosts(500) + ports(1) + `,"exportTo":` + many(201, `"n#"`), "spec.exportTo: has 500 hosts times 201 namespaces"},
		"names":     {entry, hosts(100) + ports(100) + `,"subjectAltNames":["` + strings.Repeat("a", 4000) + `"]`, "spec.subjectAltNames: has 100 hosts times 100 ports times 4000 bytes"},
		"routes":    {virtual, hosts(100) + `,"http":[{"directResponse":{"status":200,"body":{"string":"` + body + `"}}}]`, "spec.http: has 100 hosts times"},
		"gateways":  {virtual, hosts(900) + `,"gateways":` + many(200, `"g#"`), "spec.gateways: has 900 hosts times 200 gateways"},
		"streams":   {virtual, hosts(900) + `,"tcp":` + many(200, `{"match":[{"port":#}]}`), "spec.tls: has 900 hosts times 200 matches"},
		"patches":   {"EnvoyFilter", `"configPatches":[{"applyTo":"CLUSTER","patch":{"operation":"MERGE","value":{"name":"` + body + `"}}}]`, "spec.configPatches: has values of"},
		"subsets":   {"DestinationRule", `"host":"a","subsets":` + many(150, `{"name":"s#","trafficPolicy":{"tls":{"sni":"`+strings.Repeat("a", 6000)+`"}}}`), "spec.subsets: has 150 subsets times"},
		"tags":      {"Telemetry", `"tracing":[{"customTags":{"a":{"literal":{"value":"` + body + `"}}}}]`, "spec: has 524"},
		"servers":   {"Gateway", `"servers":` + many(11, `{"hosts":`+many(1000, `"h#.example"`)+`}`), "spec.servers.hosts: has 11000 entries"},
	} {
		group := "networking.istio.io/v1alpha3"
		if tc.kind == "Telemetry" {
			group = "telemetry.istio.io/v1"
		}
		text := `{"apiVersion":"` + group + `","kind":"` + tc.kind + `","metadata":{"name":"a","namespace":"n"},"spec":{` + tc.spec + `}}`
		conv := Converter{Cluster: "c"}
		r, err := conv.DecodeJSON([]byte(text))
		if err == nil || !strings.Contains(err.Error(), tc.want) || r.Object != nil || r.Key.Name != "a" || r.Key.Namespace != "n" {
			t.Errorf("%s: got the object %v and the fault %.200v, want %s", name, r.Key, err, tc.want)
		}
		v, parseErr := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		r, inFile := conv.Decode(v, snapshot.Place{})
		if inFile == nil || inFile.Error() != err.Error() || r.Object != nil || r.Key.Name != "a" {
			t.Errorf("%s: in a file, got the object %v and the fault %.200v, want %.200v", name, r.Key, inFile, err)
		}
	}
}

// TestLargeKubernetesObjects: objects of Kubernetes have limits, too.
func TestLargeKubernetesObjects(t *testing.T) {
	t.Parallel()
	service, slice, pod, node := &corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Pod{}, &corev1.Node{}
	service.Spec.Ports = make([]corev1.ServicePort, maxPorts+1)
	slice.Ports, slice.Endpoints = make([]discoveryv1.EndpointPort, 101), make([]discoveryv1.Endpoint, 1000)
	for i := range slice.Endpoints {
		slice.Endpoints[i].Addresses = []string{"10.0.0.1"}
	}
	pod.Spec.Containers = []corev1.Container{{Ports: make([]corev1.ContainerPort, fields.MaxEntries+1)}}
	node.Status.Addresses = make([]corev1.NodeAddress, maxPorts+1)
	for field, object := range map[string]any{"spec.ports": service, "endpoints": slice, "spec.containers": pod, "status.addresses": node} {
		if fault := limitFault(object); fault == nil || fault.Field != field || !fault.Limit {
			t.Errorf("%s of a %T: %v", field, object, fault)
		}
	}
	if _, err := (&Converter{}).DecodeJSON([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":` + many(fields.MaxEntries+1, "{}") + `}}`)); err == nil ||
		!strings.Contains(err.Error(), "spec.containers: has more than 10000 entries") {
		t.Errorf("got %v", err)
	}
}

// TestLargePolicies: of a security policy that exceeds a limit, nothing is used but its small
// fields. It permits nothing.
func TestLargePolicies(t *testing.T) {
	t.Parallel()
	rules := many(fields.MaxEntries+1, `{"from":[{"source":{"namespaces":["n#"]}}]}`)
	for name, tc := range map[string]struct{ kind, spec string }{
		"allow":          {"AuthorizationPolicy", `"selector":{"matchLabels":{"a":"b"}},"rules":` + rules},
		"deny":           {"AuthorizationPolicy", `"action":"DENY","selector":{"matchLabels":{"a":"b"}},"rules":` + rules},
		"ports":          {"PeerAuthentication", `"selector":{"matchLabels":{"a":"b"}},"portLevelMtls":` + strings.NewReplacer("[", "{", "]", "}").Replace(many(fields.MaxEntries+1, `"#":null`))},
		"tokens":         {"RequestAuthentication", `"selector":{"matchLabels":{"a":"b"}},"jwtRules":` + many(fields.MaxEntries+1, `{"issuer":"a#"}`)},
		"rules of token": {"RequestAuthentication", `"selector":{"matchLabels":{"a":"b"}},"jwtRules":` + many(maxListeners+1, `{"issuer":"a#","jwksUri":"https://example.com/keys/`+strings.Repeat("a", 200)+`"}`)},
	} {
		text := `{"apiVersion":"security.istio.io/v1","kind":"` + tc.kind + `","metadata":{"name":"a","namespace":"n"},"spec":{` + tc.spec + `}}`
		conv := Converter{Cluster: "c"}
		r, err := conv.DecodeJSON([]byte(text))
		if err == nil || r.Closed == nil || r.Closed.Key().Namespace != "n" {
			t.Errorf("%s: got %v and the fault %.200v", name, r.Closed, err)
			continue
		}
		v, parseErr := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		inFile, _ := conv.Decode(v, snapshot.Place{})
		for where, closed := range map[string]snapshot.Object{"API": r.Closed, "file": inFile.Closed} {
			policy, ok := closed.(snapshot.Policy)
			if !ok {
				t.Errorf("%s, %s: %v is not a policy", name, where, closed)
				continue
			}
			content := fmt.Sprint(policy.Content())
			if len(content) > 1000 || !strings.Contains(strings.ReplaceAll(content, " ", ""), `match_labels:{key:"a"value:"b"}`) {
				t.Errorf("%s, %s: %.1000s, want the selector, and little more", name, where, content)
			}
			t.Logf("%s, %s: %s", name, where, content)
		}
		if p, ok := r.Closed.(*snapshot.AuthorizationPolicy); ok && len(p.Doubtful) != 1 {
			t.Errorf("%s: doubtful are the rules %v, want one that permits nothing", name, p.Doubtful)
		}
	}
}

// TestDecodersAgree: a text that is too lax to be counted is refused.
func TestDecodersAgree(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"a":` + many(fields.MaxEntries+1, "1") + `}`,
		`{"a":1,"a":` + many(fields.MaxEntries+1, "1") + `}`,
		"{\"\xff\":\"\xff\",\"b\":" + many(fields.MaxEntries+1, "1") + `}`,
		`{"a":"\ud800","b":` + many(fields.MaxEntries+1, "1") + `}`,
	} {
		if fault := fields.SizeFault([]byte(text)); fault == nil || !fault.Limit {
			t.Errorf("%.30q: %v", text, fault)
		}
	}
	for _, text := range []string{`{"a":`, `[1,2`, ``, `{"a":1}`} {
		if fault := fields.SizeFault([]byte(text)); fault != nil {
			t.Errorf("%q: %v", text, fault)
		}
	}
}
