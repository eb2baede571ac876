package redirect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Flag is a setting of istio-iptables, as a flag, an environment variable and, for some, an
// annotation of the pod.
type Flag struct {
	Name, Short string
	// variable is the environment variable, if its name is not that of the flag.
	variable string
	// Annotation of the pod, empty for none.
	Annotation string
	// Default is the value for which Istio's injector calls istio-iptables.
	Default string
	Usage   string

	set func(*Options, string) error
}

// Variable returns the environment variable of the flag.
func (f *Flag) Variable() string { return cmp.Or(f.variable, VariableOf(f.Name)) }

// VariableOf returns the environment variable that istio-iptables reads for a flag.
func VariableOf(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

const annotations = "traffic.sidecar.istio.io/"

// Flags returns the settings with a value.
func Flags() []Flag {
	return []Flag{
		{Name: "envoy-port", Short: "p", Default: "15001", Usage: "`Port` of Envoy that takes outbound connections", set: func(o *Options, s string) error { return parsePort(&o.ProxyPort, s) }},
		{Name: "inbound-capture-port", Short: "z", Default: "15006", Usage: "`Port` of Envoy that takes inbound connections", set: func(o *Options, s string) error { return parsePort(&o.InboundPort, s) }},
		{Name: "inbound-tunnel-port", Short: "e", Default: "15008", Usage: "`Port` of Envoy that takes tunnels, which are not redirected", set: func(o *Options, s string) error { return parsePort(&o.TunnelPort, s) }},
		{Name: "proxy-uid", Short: "u", Default: "1337", Usage: "`User IDs` of the proxy, whose connections are not redirected", set: func(o *Options, s string) error { return parseList(&o.UIDs, s, parseID) }},
		{Name: "proxy-gid", Short: "g", Usage: "`Group IDs` of the proxy (default as --proxy-uid)", set: func(o *Options, s string) error { return parseList(&o.GIDs, s, parseID) }},
		{Name: "istio-inbound-interception-mode", Short: "m", Annotation: "sidecar.istio.io/interceptionMode", Default: "REDIRECT", Usage: "`Mode` of inbound redirection: REDIRECT; TPROXY, by which applications see the addresses of their clients; or NONE, which makes no rules", set: parseMode},
		{Name: "istio-inbound-ports", Short: "b", Annotation: annotations + "includeInboundPorts", Default: "*", Usage: "`Ports` whose inbound connections are redirected, * for all", set: func(o *Options, s string) error {
			o.Inbound.All = s == all
			return parseListOrAll(&o.Inbound.List, s, parseOnePort)
		}},
		{Name: excludeInbound, Short: "d", Annotation: annotations + "excludeInboundPorts", Default: "15090,15021,15020", Usage: "`Ports` whose inbound connections are not redirected; the annotation adds to them", set: func(o *Options, s string) error { return parseList(&o.InboundExclude, s, parseOnePort) }},
		{Name: "istio-exclude-interfaces", Short: "c", Annotation: annotations + "excludeInterfaces", Usage: "`Interfaces` whose connections are not redirected", set: func(o *Options, s string) error { return parseList(&o.ExcludeInterfaces, s, parseInterface) }},
		{Name: "istio-service-cidr", Short: "i", Annotation: annotations + "includeOutboundIPRanges", Default: "*", Usage: "`Ranges` of addresses to which outbound connections are redirected, * for all", set: func(o *Options, s string) error {
			o.Outbound.All = s == all
			return parseListOrAll(&o.Outbound.List, s, parseRange)
		}},
		{Name: "istio-service-exclude-cidr", Short: "x", Annotation: annotations + "excludeOutboundIPRanges", Usage: "`Ranges` of addresses to which outbound connections are not redirected", set: func(o *Options, s string) error { return parseList(&o.OutboundExclude, s, parseRange) }},
		{Name: "istio-outbound-ports", Short: "q", Annotation: annotations + "includeOutboundPorts", Usage: "`Ports` to which outbound connections are redirected, in addition to --istio-service-cidr", set: func(o *Options, s string) error { return parseList(&o.OutboundPorts, s, parseOnePort) }},
		{Name: "istio-local-outbound-ports-exclude", Short: "o", Annotation: annotations + "excludeOutboundPorts", Usage: "`Ports` to which outbound connections are not redirected", set: func(o *Options, s string) error { return parseList(&o.OutboundPortsExclude, s, parseOnePort) }},
		{Name: "kube-virt-interfaces", Short: "k", Annotation: annotations + "kubevirtInterfaces", Usage: "`Interfaces` of virtual machines; redirection treats connections from them as outbound connections", set: func(o *Options, s string) error { return parseList(&o.VirtualInterfaces, s, parseInterface) }},
		{Name: "outbound-owner-groups", variable: "ISTIO_OUTBOUND_OWNER_GROUPS", Default: "*", Usage: "`Group IDs` whose outbound connections are redirected, * for all", set: func(o *Options, s string) error { return parseListOrAll(&o.Groups, s, parseID) }},
		{Name: "outbound-owner-groups-exclude", variable: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", Usage: "`Group IDs` whose outbound connections are not redirected", set: func(o *Options, s string) error { return parseList(&o.GroupsExclude, s, parseID) }},
		{Name: "host-ipv4-loopback-cidr", variable: "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", Default: "127.0.0.1/32", Usage: "`Range` of loopback addresses that applications use for themselves", set: parseLoopback},
	}
}

// all stands for all ports, addresses or groups.
const all = "*"

// Resolve returns the options of the flags. value returns the value of a flag and its place,
// such as "--envoy-port". The error lists all problems.
func Resolve(value func(*Flag) (value, from string)) (*Options, error) {
	o := &Options{}
	var errs []error
	for _, f := range Flags() {
		v, from := value(&f)
		if err := f.set(o, v); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", from, v, err))
		}
	}
	if o.GIDs == nil {
		o.GIDs = o.UIDs
	}
	if len(o.UIDs) == 0 {
		errs = append(errs, errors.New("--proxy-uid is empty: without it the connections of the proxy would come back to the proxy"))
	}
	return o, errors.Join(errs...)
}

func parseOnePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port, 1 to 65535", s)
	}
	return uint16(n), nil
}

func parsePort(p *uint16, s string) (err error) {
	*p, err = parseOnePort(s)
	return err
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not the number of a user or a group", s)
	}
	return uint32(n), nil
}

func parseRange(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if ip, ipErr := netip.ParseAddr(s); ipErr == nil && ip.Zone() == "" {
		p, err = single(ip), nil
	}
	if err != nil {
		return p, fmt.Errorf("%q is not a range of addresses, such as 10.0.0.0/8", s)
	}
	return p.Masked(), nil
}

// maxInterface is the longest name of an interface.
const maxInterface = 15

func parseInterface(s string) (string, error) {
	if len(s) > maxInterface || strings.ContainsAny(s, " /\"\t\n") {
		return "", fmt.Errorf("%q is not the name of an interface", s)
	}
	return s, nil
}

// parseList parses a list with commas. Empty parts do not count.
func parseList[T any](list *[]T, s string, parse func(string) (T, error)) error {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		v, err := parse(part)
		if err != nil {
			return err
		}
		*list = append(*list, v)
	}
	return nil
}

func parseListOrAll[T any](list *[]T, s string, parse func(string) (T, error)) error {
	if s == all {
		return nil
	}
	return parseList(list, s, parse)
}

func parseMode(o *Options, s string) error {
	switch s {
	case "REDIRECT", "":
	case "TPROXY":
		o.Transparent = true
	case "NONE":
		o.None = true
	default:
		return errors.New("want REDIRECT, TPROXY or NONE")
	}
	return nil
}

func parseLoopback(o *Options, s string) error {
	p, err := parseRange(s)
	if err == nil && (p.Addr().Is6() || !p.Addr().IsLoopback()) {
		err = errors.New("want a part of 127.0.0.0/8")
	}
	o.Loopback = p
	return err
}

// FromAnnotation returns the value of the flag for the value of its annotation. Ports of Envoy
// and the agent are never redirected.
func (f *Flag) FromAnnotation(value string) string {
	if f.Name == excludeInbound {
		return f.Default + "," + value
	}
	return value
}

const excludeInbound = "istio-local-exclude-ports"
