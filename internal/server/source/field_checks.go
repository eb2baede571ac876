package source

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

// at returns the path of an item of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// each checks every item of a list. Empty items are faults.
func each[T any](list string, items []*T, check func(field string, item *T) *FieldError) *FieldError {
	var faults *FieldError
	for i, item := range items {
		if item == nil {
			faults = faults.and(faultf(at(list, i), "is empty"))
			continue
		}
		faults = faults.and(check(at(list, i), item))
	}
	return faults
}

// hostFault checks a DNS name that may be "*" or start with "*.".
func hostFault(field, host string) *FieldError {
	if name := mesh.CanonicalHost(host); name == "*" || mesh.IsDNSName(strings.TrimPrefix(name, "*.")) {
		return nil
	}
	return faultf(field, "%q is not a host name", host)
}

// patternFault checks a DNS name that may start with "*", which stands for the start of a label, too.
func patternFault(field, host string) *FieldError {
	if suffix, ok := strings.CutPrefix(mesh.CanonicalHost(host), "*"); ok && mesh.IsDNSName(strings.TrimPrefix(suffix, "-")) {
		return nil
	}
	return hostFault(field, host)
}

// scopedHostFault checks <namespace>/<host> as patternFault does. The namespace may also be one of
// the words.
func scopedHostFault(field, host, words string) *FieldError {
	namespace, name, _ := strings.Cut(host, "/")
	if !mesh.IsDNSLabel(namespace) && !slices.Contains(strings.Fields(words), namespace) {
		return faultf(field, "%q: %q is neither a namespace nor one of %s", host, namespace, words)
	}
	return patternFault(field, name)
}

func portFault(field string, number uint32, protocol string, refused ...mesh.Protocol) *FieldError {
	faults := protocolFault(field, protocol, refused...)
	if !isPort(number) {
		return faultf(field+".number", "%d is not a port: want 1 to 65535", number).and(faults)
	}
	return faults
}

// protocolFault checks the protocol of a port. None means detection.
func protocolFault(field, protocol string, refused ...mesh.Protocol) *FieldError {
	p, known := mesh.ParseProtocol(protocol)
	if protocol != "" && !known || slices.Contains(refused, p) {
		return faultf(field+".protocol", "%q is not a protocol that this port can have", protocol)
	}
	return nil
}

func bindFault(field, bind string) *FieldError {
	if bind == "" {
		return nil
	}
	if _, err := parseAddr(bind); err != nil {
		return &FieldError{Field: field, Err: err}
	}
	return nil
}

func labelsFault(field string, labels map[string]string) *FieldError {
	if len(labels) == 0 {
		return nil
	}
	var faults *FieldError
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key == "" || strings.Contains(key, "*") || strings.Contains(labels[key], "*") {
			faults = faults.and(faultf(field+"["+key+"]", "wildcards and empty names are not allowed"))
		}
	}
	return faults
}

// parseAddr parses an IP address. The result is comparable: IPv4 is never mapped to
// IPv6. Zones are refused.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

func isPort[T int32 | uint32](n T) bool { return n > 0 && n <= 65535 }

// itemOf returns the path of an item of a list, or the field itself if it holds a
// single address.
func itemOf(field string, i int) string {
	if strings.HasSuffix(field, "IP") {
		return field
	}
	return at(field, i)
}

// textFault checks a text that becomes part of a request, a response or a condition.
func textFault(field, text string) *FieldError {
	switch {
	case len(text) > maxText:
		return faultf(field, "has %d bytes, at most %d are accepted", len(text), maxText)
	case strings.ContainsAny(text, "\x00\r\n"):
		return faultf(field, "contains a line break or a zero byte")
	}
	return nil
}

// regexFault checks a regular expression, which Envoy compiles with RE2.
func regexFault(field, text string) *FieldError {
	if text == "" {
		return faultf(field, "is empty")
	}
	if len(text) > maxRegex {
		return faultf(field, "has %d bytes, at most %d are accepted", len(text), maxRegex)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return faultf(field, "%q is not a regular expression of RE2: %w", text, err)
	}
	for _, escape := range regexEscape.FindAllStringSubmatch(text, -1) {
		if escape[1] != "" {
			return faultf(field, "%s is no byte, and Envoy matches bytes: write the character itself", escape[0])
		}
	}
	if regexSize(tree) > maxRegexSize {
		return faultf(field, "is too large a regular expression: its repetitions need more than %d instructions", maxRegexSize)
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

// isHeaderName reports whether s is the name of an HTTP header.
func isHeaderName(s string) bool { return mesh.IsHeaderName(s) }

func percentageFault(field string, p *networkingv1alpha3.Percent) *FieldError {
	if v := p.GetValue(); v < 0 || v > 100 || math.IsNaN(v) {
		return faultf(field, "%v is not a percentage", v)
	}
	return nil
}

// exportTo parses the annotation; nil means all namespaces.
func exportTo(text string) ([]string, *FieldError) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if fault := exportToFault("metadata.annotations["+mesh.AnnotationExportTo+"]", part); fault != nil {
			return nil, fault
		}
		out = append(out, part)
	}
	return out, nil
}

func exportToFault(field, namespace string) *FieldError {
	if namespace != "*" && namespace != "." && namespace != "~" && !mesh.IsDNSLabel(namespace) {
		return faultf(field, "%q is neither a namespace nor one of * . ~", namespace)
	}
	return nil
}

// durationFault checks a duration that may be missing.
func durationFault(field string, d *durationpb.Duration, least time.Duration) *FieldError {
	switch {
	case d == nil:
		return nil
	case d.CheckValid() != nil || d.AsDuration() < least:
		return faultf(field, "%v is too short: want at least %v", d.AsDuration(), least)
	}
	return nil
}

// countFault checks a number that may be missing, which is 0.
func countFault(field string, n int32) *FieldError {
	if n < 0 {
		return faultf(field, "%d is negative", n)
	}
	return nil
}

// timeFault checks a time that may be missing.
func timeFault(field string, d *durationpb.Duration, least time.Duration) *FieldError {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() > maxRouteTime) {
		return faultf(field, "is longer than %v", maxRouteTime)
	}
	return durationFault(field, d, least)
}

func isWellKnown(d protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(d.FullName()), "google.protobuf.")
}

// ruleExportFault checks a namespace to which a VirtualService or a DestinationRule is
// exported.
func ruleExportFault(field, namespace string) *FieldError {
	if namespace != "*" && namespace != "." && !mesh.IsDNSLabel(namespace) {
		return faultf(field, "%q is neither a namespace nor one of * .", namespace)
	}
	return nil
}

const maxRegex = 4 << 10

const maxRegexSize = 32_000 // instructions; the bootstrap of the agent allows 32768

const maxText = 16 << 10

const maxRouteTime = 365 * 24 * time.Hour
