package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/Masterminds/sprig/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// templateFunctions returns the functions of Istio's injection templates: those of sprig, and Istio's. They
// are made at the first use, as most commands run no template.
var templateFunctions = sync.OnceValue(makeTemplateFunctions)

// withheld are functions of sprig that are not offered, although Istio's injector offers them: their
// results are not the same each time, or they reveal the environment or the network of the control
// plane, or they are made to take long. The templates of Istio's charts use none of them. The same
// holds for Istio's function env.
var withheld = []string{
	"ago", "bcrypt", "buildCustomCert", "decryptAES", "derivePassword", "encryptAES", "genCA", "genCAWithKey",
	"genPrivateKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
	"htpasswd", "must_date_modify", "mustDateModify", "mustToDate", "randInt", "shuffle", "toDate", "unixEpoch",
}

func makeTemplateFunctions() map[string]any {
	out := map[string]any(sprig.HermeticTxtFuncMap())
	maps.DeleteFunc(out, func(name string, _ any) bool { return slices.Contains(withheld, name) })
	maps.Copy(out, map[string]any{
		// The functions of package text/template.
		"and": func(first any, _ ...any) any { return first }, "or": func(first any, _ ...any) any { return first },
		"not": func(value any) bool { return !isTrue(reflect.ValueOf(value)) },
		"eq":  equal,
		"ne":  func(a, b any) (bool, error) { same, err := equal(a, b); return !same, err },
		"lt":  ordered(func(order int) bool { return order < 0 }), "le": ordered(func(order int) bool { return order <= 0 }),
		"gt": ordered(func(order int) bool { return order > 0 }), "ge": ordered(func(order int) bool { return order >= 0 }),
		"index": index, "len": length,
		"print": fmt.Sprint, "println": fmt.Sprintln, "printf": printf,
		"html": html.EscapeString, "urlquery": url.QueryEscape,

		"annotation":          annotationOr,
		"appendMultusNetwork": appendMultusNetwork,
		"applicationPorts":    func(list []corev1.Container) string { return containerPorts(list, proxyContainer) },
		"directory":           func(file string) string { dir, _ := path.Split(file); return dir },
		"excludeInboundPort":  excludeInboundPort,
		"excludeInterfaces":   func(text string) string { return text },
		"formatDuration":      func(d *durationpb.Duration) string { return d.AsDuration().String() },
		"fromJSON":            fromJSON,
		"includeInboundPorts": func(list []corev1.Container) string { return containerPorts(list, "") },
		"indent":              indent,
		"isset":               func(m map[string]string, name string) bool { _, ok := m[name]; return ok },
		"kubevirtInterfaces":  func(text string) string { return text },
		"mergeMaps":           mergeMaps,
		"omit":                omit,
		"omitNil":             omitNil,
		// Providers for which Istio writes attributes are not used (serviceAttributeEnrichment).
		"otelResourceAttributes": func(*meshv1alpha1.MeshConfig, map[string]string, map[string]string, string, []corev1.Container) string {
			return ""
		},
		"protoToJSON":  protoToJSON,
		"strdict":      strdict,
		"structToJSON": structToJSON,
		"toJSON":       func(m map[string]string) (string, error) { return structToJSON(mergeMaps(m)) },
		"toJsonMap":    func(list ...map[string]string) (string, error) { return structToJSON(mergeMaps(list...)) },
		"toLower":      strings.ToLower,
		"toYaml":       toYAML,
		"valueOrDefault": func(value, other any) any {
			if value == nil || value == "" {
				return other
			}
			return value
		},
	})
	return out
}

// resultSizes estimates, before the call, the work of functions whose result may be much larger than
// their arguments, or that take long.
var resultSizes = map[string]func([]reflect.Value) int{
	"repeat":    func(a []reflect.Value) int { return times(a[0].Int(), size(a[1])) },
	"indent":    func(a []reflect.Value) int { return times(a[0].Int(), lines(a[1])) },
	"nindent":   func(a []reflect.Value) int { return times(a[0].Int(), lines(a[1])) },
	"until":     numbers,
	"untilStep": numbers,
	"seq":       func(a []reflect.Value) int { return 20 * numbers(a) }, // bytes of a number
	"wrapWith":  func(a []reflect.Value) int { return times(size(a[1]), size(a[2])) },
	"replace":   func(a []reflect.Value) int { return times(size(a[1]), size(a[2])) },
	"join":      func(a []reflect.Value) int { return times(size(a[0]), size(a[1])) },
	"printf":    printfSize,
	"uniq":      compared, "mustUniq": compared, "without": compared, "mustWithout": compared,
	"regexMatch": regexWork, "mustRegexMatch": regexWork, "regexFind": regexWork, "mustRegexFind": regexWork,
	"regexFindAll": regexWork, "mustRegexFindAll": regexWork, "regexSplit": regexWork, "mustRegexSplit": regexWork,
	"regexReplaceAll": regexWork, "mustRegexReplaceAll": regexWork,
	"regexReplaceAllLiteral": regexWork, "mustRegexReplaceAllLiteral": regexWork,
}

func size(v reflect.Value) int64 { return int64(sizeOf(v, 1, maxTemplateWork, 0)) }

func lines(v reflect.Value) int64 { return int64(strings.Count(v.String(), "\n") + 1) }

// times returns a product, at most somewhat more than all work.
func times(a, b int64) int {
	if a <= 0 || b <= 0 {
		return 0
	}
	if a > maxTemplateWork/b {
		return maxTemplateWork + 1
	}
	return int(a * b)
}

// numbers estimates the length of a list of numbers: not more than the largest of its start, its end
// and its step. Where these are small, no sum exceeds the type.
func numbers(args []reflect.Value) int {
	work := 0
	for _, n := range args {
		work = max(work, times(n.Int(), 1), times(-(n.Int()+1), 1))
	}
	return 2 * work
}

// compared estimates the work of a function that compares all values with all others.
func compared(args []reflect.Value) int { return times(size(args[0]), size(args[len(args)-1])) }

// regexWork estimates the work of a function with an expression, a text and perhaps a replacement.
func regexWork(args []reflect.Value) int {
	work := times(size(args[0]), size(args[1]))
	if len(args) > 2 && args[2].Kind() == reflect.String {
		work += times(size(args[1]), size(args[2]))
	}
	return work
}

// wide matches verbs with a width that is no small constant.
var wide = regexp.MustCompile(`%[^%a-zA-Z]*(\*|[0-9]{4})`)

// printf formats as fmt.Sprintf. Package fmt makes up to a million bytes of a verb with a width.
func printf(format string, args ...any) (string, error) {
	if wide.MatchString(format) {
		return "", errors.New("a width in the format of printf is not a number below 1000")
	}
	return fmt.Sprintf(format, args...), nil
}

func printfSize(args []reflect.Value) int {
	most := int64(1000) // of a width
	for _, a := range args[1:] {
		most += size(a)
	}
	return times(int64(strings.Count(args[0].String(), "%")), most)
}

// annotationOr returns an annotation of an object, or another value.
func annotationOr(of metav1.ObjectMeta, name string, other any) string {
	if value, ok := of.Annotations[name]; ok {
		return value
	}
	return fmt.Sprint(other)
}

// indent indents all lines but the first.
func indent(spaces int, text string) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", max(spaces, 0)))
}

func toYAML(value any) (string, error) {
	text, err := yaml.Marshal(value)
	return string(text), err
}

func structToJSON(value any) (string, error) {
	if value == nil {
		return "{}", nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// protoToJSON returns a message in JSON. A ProxyConfig has only what differs from the defaults.
func protoToJSON(m proto.Message) (string, error) {
	if pc, ok := m.(*meshv1alpha1.ProxyConfig); ok {
		return proxyConfigText(pc)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer // with the same spaces each time
	err = json.Compact(&out, text)
	return out.String(), err
}

func fromJSON(text string) any {
	var out any
	if json.Unmarshal([]byte(text), &out) != nil {
		return "{}" // as Istio
	}
	return out
}

// omit returns a map without some names.
func omit(m map[string]string, names ...string) map[string]string {
	out := mergeMaps(m)
	for _, name := range names {
		delete(out, name)
	}
	return out
}

// mergeMaps returns a map with the entries of all maps, of which later ones have precedence.
func mergeMaps(list ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range list {
		maps.Copy(out, m)
	}
	return out
}

// strdict returns a map of names and values in turn.
func strdict(list ...string) map[string]string {
	out := map[string]string{}
	for pair := range slices.Chunk(list, 2) {
		out[pair[0]] = strings.Join(pair[1:], "")
	}
	return out
}

// omitNil returns a value without nulls, and without mappings and lists that have nothing else.
func omitNil(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, item := range v {
			if item = omitNil(item); item != nil {
				out[name] = item
			}
		}
		if len(out) > 0 || len(v) == 0 {
			return out
		}
		return nil
	case []any:
		out := []any{}
		for _, item := range v {
			if item = omitNil(item); item != nil {
				out = append(out, item)
			}
		}
		if len(out) > 0 || len(v) == 0 {
			return out
		}
		return nil
	}
	return value
}

// excludeInboundPort adds a port to a list of ports, unless it has the port.
func excludeInboundPort(port any, list string) string {
	text := strings.TrimSpace(fmt.Sprint(port))
	ports := splitList(list)
	if text == "" || text == "0" || slices.Contains(ports, text) {
		return list
	}
	return strings.Join(append(ports, text), ",")
}

// containerPorts lists the ports of containers, except those of one container, and except UDP and SCTP.
func containerPorts(list []corev1.Container, except string) string {
	var out []string
	for i := range list {
		for _, port := range list[i].Ports {
			if list[i].Name != except && port.Protocol != corev1.ProtocolUDP && port.Protocol != corev1.ProtocolSCTP {
				out = append(out, strconv.Itoa(int(port.ContainerPort)))
			}
		}
	}
	return strings.Join(out, ",")
}

// appendMultusNetwork adds a network to the annotation of Multus, a list of names or of JSON objects.
func appendMultusNetwork(have, network string) string {
	if have == "" {
		return network
	}
	end := strings.LastIndex(have, "]")
	if end < 0 {
		if slices.Contains(splitList(have), network) {
			return have
		}
		return have + ", " + network
	}
	var list []struct{ Namespace, Name string }
	if json.Unmarshal([]byte(have), &list) != nil {
		return have
	}
	namespace, name, ok := strings.Cut(network, "/")
	if !ok {
		namespace, name = "", network
	}
	item := fmt.Sprintf(`, {"name": "%s"}`, name)
	if namespace != "" {
		item = fmt.Sprintf(`, {"name": "%s", "namespace": "%s"}`, name, namespace)
	}
	for _, n := range list {
		if n.Name == name && n.Namespace == namespace {
			return have
		}
	}
	return have[:end] + item + have[end:]
}
