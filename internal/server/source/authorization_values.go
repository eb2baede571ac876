package source

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// valueCheck returns why a value of a rule is not valid.
type valueCheck func(value string) error

// valueChecks holds the checks of the fields of sources and operations by proto name,
// without the prefix not_.
var valueChecks = map[string]valueCheck{
	"principals": principalValue, "request_principals": requestPrincipalValue, "namespaces": namespaceValue, "service_accounts": accountValue,
	"ip_blocks": rangeValue, "remote_ip_blocks": rangeValue, "trust_domains": anyValue,
	"hosts": anyValue, "ports": portValue, "methods": anyValue, "paths": pathValue,
}

// valuesFault checks the values of a source or an operation.
func valuesFault(field string, m proto.Message) *fields.Error {
	return listsFault(field, m, checkOf)
}

func checkOf(name string) valueCheck { return valueChecks[strings.TrimPrefix(name, "not_")] }

// listsFault checks the lists of strings of a message. check returns the check of a field.
func listsFault(field string, m proto.Message, check func(name string) valueCheck) *fields.Error {
	var faults *fields.Error
	for fd, list := range stringLists(m) {
		for i := range list.Len() {
			if err := check(string(fd.Name()))(list.Get(i).String()); err != nil {
				faults = faults.And(fields.Faultf(fields.At(field+"."+fd.JSONName(), i), "%w", err))
			}
		}
	}
	return faults
}

// pruneValues removes the lists of a source or an operation with a value that is not valid. Of a list
// of excluded values it removes only such values.
func pruneValues(m proto.Message) { pruneLists(m, checkOf) }

func pruneLists(m proto.Message, check func(name string) valueCheck) {
	for fd, list := range stringLists(m) {
		n := 0
		for i := range list.Len() {
			if v := list.Get(i); check(string(fd.Name()))(v.String()) == nil {
				list.Set(n, v)
				n++
			}
		}
		if n < list.Len() && !strings.HasPrefix(string(fd.Name()), "not_") {
			n = 0
		}
		list.Truncate(n)
	}
}

// stringLists iterates over the lists of strings in a message that are not empty.
func stringLists(m proto.Message) func(yield func(protoreflect.FieldDescriptor, protoreflect.List) bool) {
	return func(yield func(protoreflect.FieldDescriptor, protoreflect.List) bool) {
		r := m.ProtoReflect()
		fields := r.Descriptor().Fields()
		for i := range fields.Len() {
			if fd := fields.Get(i); fd.IsList() && fd.Kind() == protoreflect.StringKind && r.Has(fd) {
				if !yield(fd, r.Mutable(fd).List()) {
					return
				}
			}
		}
	}
}

// conditionCheck returns the check of the values of an attribute.
func conditionCheck(key string) (valueCheck, error) {
	name, _, err := snapshot.SplitAttribute(key)
	if err != nil {
		return nil, err
	}
	switch name {
	case "source.ip", "remote.ip", "destination.ip":
		return rangeValue, nil
	case "source.namespace":
		return namespaceValue, nil
	case "source.serviceAccount":
		return accountValue, nil
	case "source.principal":
		return principalValue, nil
	case "destination.port":
		return portValue, nil
	case "request.auth.principal":
		return requestPrincipalValue, nil
	}
	return anyValue, nil
}

// isTokenKey reports whether an attribute is one of the token of a request.
func isTokenKey(key string) bool { return strings.HasPrefix(key, "request.auth.") }

// maxRuleValue bounds a value of a rule, in bytes.
const maxRuleValue = 2048

func anyValue(value string) error {
	switch {
	case value == "":
		return errors.New("is empty")
	case len(value) > maxRuleValue:
		return fmt.Errorf("has %d bytes: want at most %d", len(value), maxRuleValue)
	case strings.ContainsAny(value, "\x00\r\n"):
		return fmt.Errorf("%q has a line break or a zero byte", value)
	}
	return nil
}

func principalValue(value string) error {
	if rest, is := strings.CutPrefix(value, "spiffe://"); is {
		return fmt.Errorf("%q: want it without spiffe://, as %q", value, rest)
	}
	return anyValue(value)
}

// maxSlashes bounds the slashes in a request principal. Each may be the one between issuer and
// subject, so Envoy's rule repeats the value for each.
const maxSlashes = 32

func requestPrincipalValue(value string) error {
	if n := strings.Count(value, "/"); n > maxSlashes {
		return fmt.Errorf("has %d slashes: want at most %d", n, maxSlashes)
	}
	return anyValue(value)
}

// namespaceValue checks the name of a namespace, which may have wildcards.
func namespaceValue(value string) error {
	if mesh.IsDNSLabel(strings.ReplaceAll(value, "*", "x")) {
		return nil
	}
	return fmt.Errorf("%q is not a namespace, nor a part of one with *", value)
}

// accountValue checks <namespace>/<service account> or <service account>.
func accountValue(value string) error {
	namespace, account, two := strings.Cut(value, "/")
	if !two {
		namespace, account = "x", value
	}
	if !mesh.IsDNSLabel(namespace) || !mesh.IsDNSName(account) {
		return fmt.Errorf("%q is not a service account: want <name> or <namespace>/<name>", value)
	}
	return nil
}

func rangeValue(value string) error {
	if _, err := netip.ParsePrefix(value); err == nil {
		return nil
	}
	if _, err := fields.ParseAddr(value); err != nil {
		return fmt.Errorf("%q is neither an IP address nor a range of them, such as 10.0.0.0/8", value)
	}
	return nil
}

func portValue(value string) error {
	if n, err := strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port: want 1 to 65535", value)
	}
	return nil
}

// pathValue checks a path. With one of the operators {*} and {**} it is a template: each
// operator is a whole segment, {**} is the last operator, and there is no other wildcard.
func pathValue(value string) error {
	if err := anyValue(value); err != nil || !snapshot.IsPathTemplate(value) {
		return err
	}
	if value[0] != '/' {
		return fmt.Errorf("%q is not a path template: want a slash at the start", value)
	}
	last := false
	for segment := range strings.SplitSeq(value[1:], "/") {
		switch {
		case (segment == "{*}" || segment == "{**}") && last:
			return fmt.Errorf("%q is not a path template: {**} must be the last operator", value)
		case segment == "{**}":
			last = true
		case segment == "{*}":
		case strings.ContainsAny(segment, "*{}"):
			return fmt.Errorf("%q is not a path template: {*} and {**} must be whole segments, and other wildcards are not allowed", value)
		}
	}
	return nil
}
