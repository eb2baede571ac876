package fields

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// At returns the path of an item of a list.
func At(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// Each checks every item of a list. Empty items are faults.
func Each[T any](list string, items []*T, check func(field string, item *T) *Error) *Error {
	var faults *Error
	for i, item := range items {
		if item == nil {
			faults = faults.And(Faultf(At(list, i), "is empty"))
			continue
		}
		faults = faults.And(check(At(list, i), item))
	}
	return faults
}

// HostFault checks a DNS name that may be "*" or start with "*.".
func HostFault(field, host string) *Error {
	if name := mesh.CanonicalHost(host); name == "*" || mesh.IsDNSName(strings.TrimPrefix(name, "*.")) {
		return nil
	}
	return Faultf(field, "%q is not a host name", host)
}

// PatternFault checks a DNS name that may start with "*", which stands for the start of a label, too.
func PatternFault(field, host string) *Error {
	if suffix, ok := strings.CutPrefix(mesh.CanonicalHost(host), "*"); ok && mesh.IsDNSName(strings.TrimPrefix(suffix, "-")) {
		return nil
	}
	return HostFault(field, host)
}

// ScopedHostFault checks <namespace>/<host> as PatternFault does. The namespace may also be one of
// the words.
func ScopedHostFault(field, host, words string) *Error {
	namespace, name, _ := strings.Cut(host, "/")
	if !mesh.IsDNSLabel(namespace) && !slices.Contains(strings.Fields(words), namespace) {
		return Faultf(field, "%q: %q is neither a namespace nor one of %s", host, namespace, words)
	}
	return PatternFault(field, name)
}

// PortFault checks the number and the protocol of a port, which must be none of refused.
func PortFault(field string, number uint32, protocol string, refused ...mesh.Protocol) *Error {
	faults := ProtocolFault(field, protocol, refused...)
	if !IsPort(number) {
		return Faultf(field+".number", "%d is not a port: want 1 to 65535", number).And(faults)
	}
	return faults
}

// ProtocolFault checks the protocol of a port. None means detection.
func ProtocolFault(field, protocol string, refused ...mesh.Protocol) *Error {
	p, known := mesh.ParseProtocol(protocol)
	if protocol != "" && !known || slices.Contains(refused, p) {
		return Faultf(field+".protocol", "%q is not a protocol that this port can have", protocol)
	}
	return nil
}

// BindFault checks the address at which a listener listens. None means the default.
func BindFault(field, bind string) *Error {
	if bind == "" {
		return nil
	}
	if _, err := ParseAddr(bind); err != nil {
		return &Error{Field: field, Err: err}
	}
	return nil
}

// LabelsFault checks the labels of a selector.
func LabelsFault(field string, labels map[string]string) *Error {
	if len(labels) == 0 {
		return nil
	}
	var faults *Error
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key == "" || strings.Contains(key, "*") || strings.Contains(labels[key], "*") {
			faults = faults.And(Faultf(field+"["+key+"]", "wildcards and empty names are not allowed"))
		}
	}
	return faults
}

// ParseAddr parses an IP address. The result is comparable: IPv4 is never mapped to
// IPv6. Zones are refused.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// IsPort reports whether a number is that of a port.
func IsPort[T int32 | uint32](n T) bool { return n > 0 && n <= 65535 }

// ItemOf returns the path of an item of a list, or the field itself if it holds a
// single address.
func ItemOf(field string, i int) string {
	if strings.HasSuffix(field, "IP") {
		return field
	}
	return At(field, i)
}

// TextFault checks a text that becomes part of a request, a response or a condition.
func TextFault(field, text string) *Error {
	switch {
	case len(text) > maxText:
		return Faultf(field, "has %d bytes, at most %d are accepted", len(text), maxText)
	case strings.ContainsAny(text, "\x00\r\n"):
		return Faultf(field, "contains a line break or a zero byte")
	}
	return nil
}

// RegexFault checks a regular expression, which Envoy compiles with RE2.
func RegexFault(field, text string) *Error {
	if text == "" {
		return Faultf(field, "is empty")
	}
	if len(text) > maxRegex {
		return Faultf(field, "has %d bytes, at most %d are accepted", len(text), maxRegex)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return Faultf(field, "%q is not a regular expression of RE2: %w", text, err)
	}
	for _, escape := range regexEscape.FindAllStringSubmatch(text, -1) {
		if escape[1] != "" {
			return Faultf(field, "%s is no byte, and Envoy matches bytes: write the character itself", escape[0])
		}
	}
	if regexSize(tree) > maxRegexSize {
		return Faultf(field, "is too large a regular expression: its repetitions need more than %d instructions", maxRegexSize)
	}
	return nil
}

// regexEscape matches an escape sequence. Its group matches a number above 255.
var regexEscape = regexp.MustCompile(`(?s)\\(?:(x\{0*[1-9A-Fa-f][0-9A-Fa-f]{2,}\}|[4-7][0-7]{2})|.)`)

// regexSize returns the number of RE2's instructions for an expression, or more. It stops
// counting above maxRegexSize.
func regexSize(re *syntax.Regexp) int {
	n := 2
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass: // ranges of runes take several instructions, as RE2 matches bytes
		n += len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(n+regexSize(sub), maxRegexSize+1)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxRegexSize+1)
}

// IsHeaderName reports whether s is the name of an HTTP header.
func IsHeaderName(s string) bool { return mesh.IsHeaderName(s) }

// PercentageFault checks a percentage, which may be missing.
func PercentageFault(field string, p *networkingv1alpha3.Percent) *Error {
	if v := p.GetValue(); v < 0 || v > 100 || math.IsNaN(v) {
		return Faultf(field, "%v is not a percentage", v)
	}
	return nil
}

// ExportTo parses the annotation; nil means all namespaces.
func ExportTo(text string) ([]string, *Error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if fault := ExportToFault("metadata.annotations["+mesh.AnnotationExportTo+"]", part); fault != nil {
			return nil, fault
		}
		out = append(out, part)
	}
	return out, nil
}

// ExportToFault checks a namespace, or a word for namespaces, in exportTo.
func ExportToFault(field, namespace string) *Error {
	if namespace != "*" && namespace != "." && namespace != "~" && !mesh.IsDNSLabel(namespace) {
		return Faultf(field, "%q is neither a namespace nor one of * . ~", namespace)
	}
	return nil
}

// DurationFault checks a duration that may be missing.
func DurationFault(field string, d *durationpb.Duration, least time.Duration) *Error {
	switch {
	case d == nil:
		return nil
	case d.CheckValid() != nil || d.AsDuration() < least:
		return Faultf(field, "%v is too short: want at least %v", d.AsDuration(), least)
	}
	return nil
}

// countFault checks a number that may be missing, which is 0.
func countFault(field string, n int32) *Error {
	if n < 0 {
		return Faultf(field, "%d is negative", n)
	}
	return nil
}

// TimeFault checks a time that may be missing.
func TimeFault(field string, d *durationpb.Duration, least time.Duration) *Error {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() > maxRouteTime) {
		return Faultf(field, "is longer than %v", maxRouteTime)
	}
	return DurationFault(field, d, least)
}

// IsWellKnown reports whether a message is one of protobuf itself, such as a Duration.
func IsWellKnown(d protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(d.FullName()), "google.protobuf.")
}

// RuleExportFault checks a namespace to which a VirtualService or a DestinationRule is
// exported.
func RuleExportFault(field, namespace string) *Error {
	if namespace != "*" && namespace != "." && !mesh.IsDNSLabel(namespace) {
		return Faultf(field, "%q is neither a namespace nor one of * .", namespace)
	}
	return nil
}

const maxRegex = 4 << 10

const maxRegexSize = 32_000 // instructions; the bootstrap of the agent allows 32768

const maxText = 16 << 10

const maxRouteTime = 365 * 24 * time.Hour
