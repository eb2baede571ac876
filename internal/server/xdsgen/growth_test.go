package xdsgen_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var (
	allPairs = flag.Bool("all-pairs", false, "TestGrownObjects grows all lists and all pairs of them, which takes an hour")
	oneKind  = flag.String("grow", "", "TestGrownObjects grows only the objects of this kind")
)

// Bounds of TestGrownObjects.
const (
	maxGrown = 1_500_000 // bytes of an object, which is what etcd stores
	// maxGrownCost bounds what the computations about one object allocate, in bytes.
	maxGrownCost = 1 << 30
	// Without -all-pairs, one of as many lists and one of as many pairs is grown.
	listShare, pairShare = 24, 2000
)

// growable is an object that has an entry in its lists and maps.
type growable struct {
	kind string
	tree map[string]any
	// maps holds the paths of maps.
	maps map[string]bool
}

// growables returns the objects of testdata/growth.yaml.
func growables(t *testing.T) []growable {
	t.Helper()
	text, err := os.ReadFile("testdata/growth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []growable
	for chunk := range yamldoc.Split(text) {
		v, err := yamldoc.Parse(chunk)
		if err != nil {
			t.Fatal(err)
		}
		data, err := v.JSON()
		if err != nil {
			t.Fatal(err)
		}
		g := growable{kind: v.Get("kind").Text(), maps: map[string]bool{}}
		if err := json.Unmarshal(data, &g.tree); err != nil {
			t.Fatal(err)
		}
		if m := specOf(g.kind); m != nil {
			for path, f := range fieldsOf("spec", m.ProtoReflect().Descriptor(), 0) {
				g.maps[path] = f.IsMap()
			}
		}
		for _, path := range []string{"metadata.labels", "data", "spec.selector", "metadata.annotations"} {
			g.maps[path] = true
		}
		out = append(out, g)
	}
	return out
}

// specOf returns an empty spec of a kind of Istio, or nil.
func specOf(kind string) proto.Message {
	for _, s := range specs {
		if s.kind == kind {
			return s.spec
		}
	}
	return nil
}

// fieldsOf returns the repeated fields of a message and of all messages in it by path. The
// entries of a list are [], and the values of a map {}.
func fieldsOf(path string, m protoreflect.MessageDescriptor, depth int) map[string]protoreflect.FieldDescriptor {
	const maxDepth = 9
	out := map[string]protoreflect.FieldDescriptor{}
	if strings.HasPrefix(string(m.FullName()), "google.protobuf.") || depth > maxDepth {
		return out
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		at, of := path+"."+f.JSONName(), f.Message()
		switch {
		case f.IsMap():
			out[at] = f
			of = f.MapValue().Message()
			at += "{}"
		case f.IsList():
			out[at] = f
			at += "[]"
		}
		if of != nil {
			maps.Copy(out, fieldsOf(at, of, depth+1))
		}
	}
	return out
}

// lists returns the paths of the lists and maps in a value.
func (g growable) lists(path string, value any) []string {
	var out []string
	switch v := value.(type) {
	case []any:
		out = append(out, path)
		for _, item := range v {
			out = append(out, g.lists(path+"[]", item)...)
		}
	case map[string]any:
		next := path + "."
		if g.maps[path] {
			out = append(out, path)
			next = path + "{}"
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if at := next; g.maps[path] {
				out = append(out, g.lists(at, v[key])...)
			} else {
				out = append(out, g.lists(strings.TrimPrefix(at+key, "."), v[key])...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// fixed are the fields whose values have a meaning of their own.
var fixed = regexp.MustCompile(`^(protocol|resolution|kind|group|apiVersion|applyTo|context|operation|type|mode|phase|key|jwks|pattern|` +
	`number|@type|addressType|expression|sourceSubnet|grpcStatus|location|metric|targetPort)$`)

// vary returns a copy of an entry that differs in its i-th version.
func vary(field string, value any, i int) any {
	switch v := value.(type) {
	case []any:
		out := make([]any, len(v))
		for k := range v {
			out[k] = vary(field, v[k], i)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = vary(k, v[k], i)
		}
		return out
	case float64:
		if field == "number" || field == "port" || field == "containerPort" {
			return float64((int(v)+i-1)%65_000 + 1)
		}
		return v
	case string:
		if field == "bind" || !fixed.MatchString(field) {
			return varyText(v, i)
		}
	}
	return value
}

func varyText(s string, i int) string {
	if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
		b := a.As4()
		n := uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) + uint32(i)
		return netip.AddrFrom4([4]byte{b[0], byte(n >> 16), byte(n >> 8), byte(n)}).String()
	}
	number := strconv.Itoa(i)
	switch {
	case strings.HasSuffix(s, ".example"):
		if wild, ok := strings.CutPrefix(s, "*."); ok {
			return "*.h" + number + "." + wild
		}
		if namespace, host, ok := strings.Cut(s, "/"); ok {
			return namespace + "/h" + number + "." + host
		}
		return "h" + number + "." + s
	case s == "*", s == ".", s == "", strings.ToUpper(s) == s && s[0] > '9', strings.HasSuffix(s, "/0"):
		return s
	case strings.Contains(s, "@"):
		return s[:strings.Index(s, "@")] + number + s[strings.Index(s, "@"):]
	}
	return s + number
}

// grow returns a copy of a value with n entries in the lists of a path.
func (g growable) grow(value any, at, path string, n int) any {
	if !strings.HasPrefix(path, at) {
		return value
	}
	switch v := value.(type) {
	case []any:
		field := at[strings.LastIndex(at, ".")+1:]
		if at == path {
			out := slices.Clone(v)
			for i := len(v); i < n; i++ {
				out = append(out, vary(field, v[0], i))
			}
			return out
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = g.grow(v[i], at+"[]", path, n)
		}
		return out
	case map[string]any:
		out := maps.Clone(v)
		keys := slices.Sorted(maps.Keys(v))
		for _, key := range keys {
			next := strings.TrimPrefix(at+"."+key, ".")
			if g.maps[at] {
				next = at + "{}"
			}
			out[key] = g.grow(v[key], next, path, n)
		}
		if at == path {
			for i := len(v); i < n; i++ {
				out[varyKey(keys[0], i)] = vary(keys[0], v[keys[0]], i)
			}
		}
		return out
	}
	return value
}

func varyKey(key string, i int) string {
	if n, err := strconv.Atoi(key); err == nil {
		return strconv.Itoa((n+i)%65_000 + 1)
	}
	return key + strconv.Itoa(i)
}

// size returns the size of an entry of a list, in bytes.
func (g growable) Size(path string) int {
	text := func(n int) int {
		b, _ := json.Marshal(g.grow(g.tree, "", path, n))
		return len(b)
	}
	return max((text(102)-text(2))/100, 1)
}

// text returns the object with as many entries in two lists.
func (g growable) text(t *testing.T, a string, n int, b string, m int) []byte {
	t.Helper()
	tree := g.tree
	if b != "" {
		tree, _ = g.grow(tree, "", b, m).(map[string]any)
	}
	tree, _ = g.grow(tree, "", a, n).(map[string]any)
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// grown is what came of a grown object.
type grown struct {
	err   error
	bytes int    // of the object
	cost  uint64 // allocated
	took  time.Duration
	out   int // size of all resources
}

// cost computes everything about the mesh with an object.
func cost(t *testing.T, base []snapshot.Event, text []byte) grown {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	out := grown{bytes: len(text)}
	r, err := (&source.Converter{Cluster: "c1", RefuseLocal: true}).DecodeJSON(text)
	out.err = err
	object := r.Object
	if object == nil {
		object = r.Closed
	}
	if object != nil {
		out.out = computeAll(t, append(slices.Clip(base), snapshot.Event{Key: r.Key, Object: object}))
	}
	out.took = time.Since(start)
	runtime.ReadMemStats(&after)
	out.cost = after.TotalAlloc - before.TotalAlloc
	return out
}

// computeAll computes the facts, the findings of analyze and the resources of two proxies, and
// returns the size of these resources.
func computeAll(t *testing.T, events []snapshot.Event) int {
	t.Helper()
	r := registry.New(registry.Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1"}, SystemNamespace: mesh.DefaultSystemNamespace,
		Publish: func(*snapshot.Snapshot, *snapshot.Changes) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	r.Apply(events)
	r.Synced("c1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	contents, err := r.Contents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-done
	for _, f := range r.Faults() {
		t.Errorf("%s", f)
	}
	analyze.Check(contents, analyze.Options{Now: time.Now()})
	size := 0
	for i, node := range testNodes() {
		if i != 0 && node.ID.Type != mesh.Router {
			continue
		}
		for _, resources := range generate(t, contents.Snapshot, node) {
			for _, resource := range resources {
				size += resource.Size()
			}
		}
	}
	return size
}

// refusedByLimits reports whether an object is refused because of its size.
func (g grown) refusedByLimits() bool {
	return g.err != nil && strings.Contains(g.err.Error(), "at most")
}

// largest grows one or two lists until the object is as large as etcd allows, and then makes them
// smaller until the limits permit the object. It returns the costs of the largest refused object
// and of the accepted one.
func (g growable) largest(t *testing.T, base []snapshot.Event, a, b string) (worst grown, n, m int) {
	t.Helper()
	n, m = maxGrown/g.Size(a), 0
	if b != "" {
		m = maxGrown / g.Size(b) / 2
		if n /= 2; strings.HasPrefix(b, a) || strings.HasPrefix(a, b) {
			each := math.Sqrt(maxGrown / float64(min(g.Size(a), g.Size(b))))
			n, m = int(each), int(each)
		}
	}
	for {
		text := g.text(t, a, n, b, m)
		if len(text) > maxGrown+maxGrown/8 {
			n, m = n*4/5, m*4/5
			continue
		}
		got := cost(t, base, text)
		if got.cost > worst.cost {
			worst = got
		}
		if !got.refusedByLimits() || n <= 1 && m <= 1 {
			return worst, n, m
		}
		if m > n {
			m = m * 2 / 3
		} else {
			n = n * 2 / 3
		}
	}
}

// TestGrownObjects: no object of the size that etcd stores costs much, however its lists and maps
// are grown, alone or in pairs. Limits refuse the others.
func TestGrownObjects(t *testing.T) {
	base := decodeObjects(t, "c1", "mesh", []byte(fuzzedMesh))
	for _, g := range growables(t) {
		if *oneKind != "" && g.kind != *oneKind {
			continue
		}
		name, _ := g.tree["metadata"].(map[string]any)["name"].(string)
		t.Run(g.kind+"/"+name, func(t *testing.T) {
			text, _ := json.Marshal(g.tree)
			if got := cost(t, base, text); got.err != nil {
				t.Fatal(got.err)
			}
			all := g.lists("", g.tree)
			for i, a := range all {
				for _, b := range append([]string{""}, all[i+1:]...) {
					share := uint32(pairShare)
					if b == "" {
						share = listShare
					}
					if !*allPairs && hash(g.kind, a, b)%share != 0 {
						continue
					}
					got, n, m := g.largest(t, base, a, b)
					why := ""
					if got.err != nil {
						why = fmt.Sprintf("%.200s", got.err.Error())
					}
					t.Logf("%s ×%d, %s ×%d: %d bytes cost %d MB and %v, and make %d MB of resources; %s", a, n, b, m, got.bytes, got.cost>>20, got.took.Round(time.Millisecond), got.out>>20, why)
					if got.cost > maxGrownCost {
						t.Errorf("%s ×%d, %s ×%d: %d bytes cost %d MB, want at most %d", a, n, b, m, got.bytes, got.cost>>20, maxGrownCost>>20)
					}
				}
			}
		})
	}
}

func hash(texts ...string) uint32 {
	h := fnv.New32a()
	for _, s := range texts {
		_, _ = h.Write([]byte(s + "\x00"))
	}
	return h.Sum32()
}

// notGrown are the repeated fields that no object of testdata/growth.yaml has, with the reasons.
var notGrown = map[protoreflect.FullName]string{
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":                        "replaced by allow_origins",
	"istio.networking.v1alpha3.ServerTLSSettings.credential_names":             "at most two",
	"istio.networking.v1alpha3.ServerTLSSettings.tls_certificates":             "at most two",
	"istio.networking.v1alpha3.ServerTLSSettings.verify_certificate_spki":      "like subject_alt_names",
	"istio.networking.v1alpha3.ServerTLSSettings.verify_certificate_hash":      "like subject_alt_names",
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting.failover":           "instead of distribute",
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting.failover":          "has no effect",
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting.failover_priority": "has no effect",
	"istio.security.v1beta1.Source.trust_domains":                              "has no effect",
	"istio.security.v1beta1.Source.not_trust_domains":                          "has no effect",
}

// TestGrowthHasEveryList: the objects of testdata/growth.yaml have an entry in each list and map of
// the kinds of Istio.
func TestGrowthHasEveryList(t *testing.T) {
	grown := map[protoreflect.FullName]bool{}
	all := map[string]map[string]protoreflect.FieldDescriptor{}
	for _, s := range specs {
		all[s.kind] = fieldsOf("spec", s.spec.ProtoReflect().Descriptor(), 0)
	}
	for _, g := range growables(t) {
		for _, path := range g.lists("", g.tree) {
			if f := all[g.kind][path]; f != nil {
				grown[f.FullName()] = true
			}
		}
	}
	for kind, fields := range all {
		for path, f := range fields {
			if !grown[f.FullName()] && notGrown[f.FullName()] == "" {
				t.Errorf("no %s of testdata/growth.yaml has %s (%s)", kind, path, f.FullName())
			}
		}
	}
}
