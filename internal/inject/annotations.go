package inject

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshctl/meshctl/internal/kubejson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Annotations of pods that set how they are injected.
const (
	annotationConfig         = "proxy.istio.io/config"
	annotationDiscovery      = "sidecar.istio.io/discoveryAddress"
	annotationInterception   = "sidecar.istio.io/interceptionMode"
	annotationLogLevel       = "sidecar.istio.io/logLevel"
	annotationComponentLevel = "sidecar.istio.io/componentLogLevel"
	annotationNative         = "sidecar.istio.io/nativeSidecar"
	annotationCPU            = "sidecar.istio.io/proxyCPU"
	annotationCPULimit       = "sidecar.istio.io/proxyCPULimit"
	annotationMemory         = "sidecar.istio.io/proxyMemory"
	annotationMemoryLimit    = "sidecar.istio.io/proxyMemoryLimit"
	annotationImage          = "sidecar.istio.io/proxyImage"
	annotationProbers        = "sidecar.istio.io/rewriteAppHTTPProbers"
	annotationStatsPrefixes  = "sidecar.istio.io/statsInclusionPrefixes"
	annotationStatsSuffixes  = "sidecar.istio.io/statsInclusionSuffixes"
	annotationStatsRegexps   = "sidecar.istio.io/statsInclusionRegexps"
	annotationStatTags       = "sidecar.istio.io/extraStatTags"
	annotationVolume         = "sidecar.istio.io/userVolume"
	annotationVolumeMount    = "sidecar.istio.io/userVolumeMount"
	annotationStatusPort     = "status.sidecar.istio.io/port"
	annotationReadyFailures  = "readiness.status.sidecar.istio.io/failureThreshold"
	annotationReadyDelay     = "readiness.status.sidecar.istio.io/initialDelaySeconds"
	annotationReadyPeriod    = "readiness.status.sidecar.istio.io/periodSeconds"
	annotationInRanges       = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	annotationExRanges       = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	annotationInInbound      = "traffic.sidecar.istio.io/includeInboundPorts"
	annotationExInbound      = "traffic.sidecar.istio.io/excludeInboundPorts"
	annotationInOutbound     = "traffic.sidecar.istio.io/includeOutboundPorts"
	annotationExOutbound     = "traffic.sidecar.istio.io/excludeOutboundPorts"
	annotationExInterfaces   = "traffic.sidecar.istio.io/excludeInterfaces"
	annotationKubevirt       = "traffic.sidecar.istio.io/kubevirtInterfaces"
	annotationReroute        = "istio.io/reroute-virtual-interfaces"
	annotationMerge          = "prometheus.istio.io/merge-metrics"
	annotationScrapeTargets  = mesh.AnnotationScrapeTargets
	annotationScrape         = "prometheus.io/scrape"
	annotationScrapePort     = "prometheus.io/port"
	annotationScrapePath     = "prometheus.io/path"
	annotationDefault        = "kubectl.kubernetes.io/default-container"
	annotationDefaultLogs    = "kubectl.kubernetes.io/default-logs-container"
)

// annotationKind describes an annotation: its meaning and the check of its value or, for an
// annotation without effect, the reason. The annotations ofEnvoy have no effect on a pod without
// Envoy.
type annotationKind struct {
	name, meaning string
	check         func(value string) error
	withoutEffect string
	ofEnvoy       bool
}

func anything(string) error { return nil }

// annotations lists the annotations of injection. docs/injection.md has them, too.
var annotations = []annotationKind{
	{name: annotationConfig, check: anything, meaning: "fields of `defaultConfig` of MeshConfig for this pod, YAML; `proxyMetadata` is merged"},
	{name: annotationDiscovery, check: checkAddress, meaning: "address of the control plane, host:port"},
	{name: annotationInterception, ofEnvoy: true, check: oneOf("REDIRECT", "TPROXY", "NONE"), meaning: "`REDIRECT` (default); `TPROXY`, by which the application sees the addresses of its clients and the proxy runs as root with `NET_ADMIN`; or `NONE` without an init container"},
	{name: annotationLogLevel, ofEnvoy: true, check: checkLogLevels, meaning: "log level of Envoy"},
	{name: annotationComponentLevel, ofEnvoy: true, check: checkComponentLevels, meaning: "log levels of components of Envoy, such as `rbac:debug,misc:error`"},
	{name: annotationNative, check: oneOf("true", "false"), meaning: "`false` makes the sidecar a container next to the application"},
	{name: annotationCPU, check: checkQuantity, meaning: "CPU that the proxy requests. If a pod has this or one of the next three annotations, `global.proxy.resources` and its default do not apply to the pod"},
	{name: annotationCPULimit, check: checkQuantity, meaning: "CPU limit of the proxy, which also sets the number of its worker threads"},
	{name: annotationMemory, check: checkQuantity, meaning: "memory that the proxy requests"},
	{name: annotationMemoryLimit, check: checkQuantity, meaning: "limit of memory of the proxy"},
	{name: annotationImage, check: checkImage, meaning: "image of the proxy and the init container"},
	{name: annotationProbers, check: oneOf("true", "false"), meaning: "`false` leaves the probes and hooks of the application as they are"},
	{name: annotationStatsPrefixes, ofEnvoy: true, check: anything, meaning: "further statistics of Envoy, by prefixes separated by commas"},
	{name: annotationStatsSuffixes, ofEnvoy: true, check: anything, meaning: "further statistics of Envoy, by suffixes"},
	{name: annotationStatsRegexps, ofEnvoy: true, check: checkRegexps, meaning: "further statistics of Envoy, by regular expressions"},
	{name: annotationStatTags, ofEnvoy: true, check: checkStatTags, meaning: "names of further labels of Envoy's statistics, separated by commas, in addition to `extraStatTags` of MeshConfig; the agent reads this annotation"},
	{name: annotationVolume, check: func(v string) error { _, err := userVolumes(v); return err }, meaning: "further volumes, as a JSON object by name or a list"},
	{name: annotationVolumeMount, check: func(v string) error { _, err := userMounts(v); return err }, meaning: "mounts of volumes in the container of the proxy, as a JSON object by name or a list"},
	{name: annotationStatusPort, check: checkStatusPort, meaning: "port of the agent for probes and metrics; `0` for none, by which the kubelet does not probe the proxy, the probes of the application stay, and metrics are not merged"},
	{name: annotationReadyFailures, check: numberFrom(1), meaning: "`failureThreshold` of the readiness probe of the proxy"},
	{name: annotationReadyDelay, check: numberFrom(0), meaning: "`initialDelaySeconds` of this probe"},
	{name: annotationReadyPeriod, check: numberFrom(1), meaning: "`periodSeconds` of this probe"},
	{name: annotationInRanges, ofEnvoy: true, check: checkRanges, meaning: "destinations to redirect, as address ranges separated by commas, or `*` (default); empty redirects none"},
	{name: annotationExRanges, ofEnvoy: true, check: checkRangeList, meaning: "destinations not to redirect"},
	{name: annotationInInbound, ofEnvoy: true, check: checkPorts, meaning: "ports whose inbound connections are redirected, or `*` (default); empty redirects none"},
	{name: annotationExInbound, ofEnvoy: true, check: checkPortList, meaning: "ports whose inbound connections are not redirected"},
	{name: annotationInOutbound, ofEnvoy: true, check: checkPortList, meaning: "ports whose outbound connections are redirected, for all addresses"},
	{name: annotationExOutbound, ofEnvoy: true, check: checkPortList, meaning: "ports whose outbound connections are not redirected"},
	{name: annotationExInterfaces, ofEnvoy: true, check: checkInterfaces, meaning: "interfaces whose connections are not redirected"},
	{name: annotationKubevirt, ofEnvoy: true, check: checkInterfaces, meaning: "older name of `istio.io/reroute-virtual-interfaces`"},
	{name: annotationReroute, ofEnvoy: true, check: checkInterfaces, meaning: "interfaces of virtual machines; redirection treats connections from them as outbound connections of the pod"},
	{name: annotationMerge, check: oneOf("true", "false"), meaning: "`false` leaves the annotations of Prometheus as they are"},
	{name: annotationScrapeTargets, check: checkScrapeTargets, meaning: "where the application serves its metrics, as `PORT:PATH` separated by commas, in place of `prometheus.io/port` and `path`"},
	{name: mesh.AnnotationTemplates, check: anything, meaning: "templates to apply, separated by commas (default `sidecar`)"},
	{name: labelInject, check: anything, meaning: "`true` or `false`; the label of this name has precedence"},
	{name: annotationStatus, check: anything, meaning: "set by the injector: what it added"},
	{name: "sidecar.istio.io/agentLogLevel", withoutEffect: "the agent has one log level"},
	{name: "sidecar.istio.io/bootstrapOverride", withoutEffect: "change the bootstrap with `ISTIO_BOOTSTRAP_OVERRIDE` of the agent"},
	{name: "sidecar.istio.io/controlPlaneAuthPolicy", withoutEffect: "proxies use TLS to the control plane"},
	{name: "sidecar.istio.io/enableCoreDump", withoutEffect: "core dumps are set by the node"},
	{name: "sidecar.istio.io/proxyImageType", withoutEffect: "the image has one variant"},
	{name: "sidecar.istio.io/statsCompression", withoutEffect: "statistics are not compressed"},
	{name: "sidecar.istio.io/statsEvictionInterval", withoutEffect: "upstream Envoy has no Istio statistics"},
	{name: "sidecar.istio.io/statsFlushInterval", withoutEffect: "no statistics are pushed"},
	{name: "sidecar.istio.io/statsHistogramBins", withoutEffect: "upstream Envoy has no Istio statistics"},
	{name: "sidecar.istio.io/statsHistogramBuckets", withoutEffect: "change the bootstrap with `ISTIO_BOOTSTRAP_OVERRIDE` of the agent"},
	{name: "proxy.istio.io/overrides", withoutEffect: "the injector keeps the fields of the user's container, so this annotation is not needed"},
	{name: "readiness.status.sidecar.istio.io/applicationPorts", withoutEffect: "readiness does not check the ports of the application"},
}

// findAnnotation returns the description of an annotation, or nil.
func findAnnotation(name string) *annotationKind {
	if at := slices.IndexFunc(annotations, func(k annotationKind) bool { return k.name == name }); at >= 0 {
		return &annotations[at]
	}
	return nil
}

// checkAnnotations returns the faults of the annotations, and warns about those without
// effect.
func (p *injection) checkAnnotations() []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.pod.Annotations)) {
		kind := findAnnotation(name)
		switch {
		case kind == nil && ofInjection(name):
			p.warnf("annotation %s is not known and has no effect%s", name, output.DidYouMean(name, annotationNames()))
		case kind == nil:
		case kind.check == nil:
			p.warnf("annotation %s has no effect: %s", name, kind.withoutEffect)
		default:
			if err := kind.check(p.annotation(name)); err != nil {
				errs = append(errs, fmt.Errorf("annotation %s: %w", name, err))
			} else if kind.ofEnvoy && p.proxyless() {
				p.warnf("annotation %s has no effect: the template %s runs no Envoy", name, mesh.TemplateGRPCAgent)
			}
		}
	}
	return errs
}

// ofInjection reports whether only injectors read an annotation.
func ofInjection(name string) bool {
	prefix, _, _ := strings.Cut(name, "/")
	return prefix == "proxy.istio.io" || prefix == "sidecar.istio.io" || prefix == "prometheus.istio.io" || strings.HasSuffix(prefix, ".sidecar.istio.io")
}

func annotationNames() []string {
	var names []string
	for i := range annotations {
		names = append(names, annotations[i].name)
	}
	return names
}

func oneOf(words ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("%q: want one of %s", value, strings.Join(words, ", "))
		}
		return nil
	}
}

func checkAddress(value string) error {
	host, port, ok := strings.Cut(value, ":")
	if !ok || !mesh.IsDNSName(host) || checkPort(port) != nil {
		return fmt.Errorf("%q: want host:port, such as istiod.istio-system.svc:15012", value)
	}
	return nil
}

// logLevels matches a list of levels, of which those with a name and a colon are for
// components.
var (
	logLevels       = regexp.MustCompile(`^([a-z_]+:)?(trace|debug|info|warning|warn|error|critical|off)$`)
	componentLevels = regexp.MustCompile(`^[a-z_0-9]+:(trace|debug|info|warning|warn|error|critical|off)$`)
)

// checkEach returns an error with the first item that is not ok.
func checkEach(items []string, ok func(string) bool, fault string) error {
	if i := slices.IndexFunc(items, func(item string) bool { return !ok(item) }); i >= 0 {
		return fmt.Errorf("%q %s", items[i], fault)
	}
	return nil
}

// commas splits a list in which spaces count. An empty one has no items.
func commas(value string) []string {
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

func checkLogLevels(value string) error {
	return checkEach(commas(value), logLevels.MatchString,
		"is not a log level: want trace, debug, info, warning, error, critical or off, or COMPONENT:LEVEL")
}

func checkComponentLevels(value string) error {
	return checkEach(commas(value), componentLevels.MatchString, "is not COMPONENT:LEVEL, such as misc:error")
}

func checkQuantity(value string) error {
	if err := kubejson.CheckQuantity(value); err != nil {
		return err
	}
	if q, err := resource.ParseQuantity(value); err != nil || q.Sign() <= 0 {
		return fmt.Errorf("%q is not an amount, such as 100m or 128Mi", value)
	}
	return nil
}

func checkImage(value string) error {
	if !isImageName(value) {
		return fmt.Errorf("%q is not the reference of an image, such as registry.example/meshctl:1.0", value)
	}
	return nil
}

func checkRegexps(value string) error {
	return checkEach(commas(value), func(item string) bool { _, err := regexp.Compile(item); return err == nil }, "is not a regular expression")
}

func checkStatTags(value string) error {
	return checkEach(splitList(value), mesh.IsStatTag, "is not the name of a tag: want letters, digits, '_', '-' and '.'")
}

func checkPort(value string) error {
	if n, err := strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port, 1 to 65535", value)
	}
	return nil
}

func checkStatusPort(value string) error {
	if value == "0" || checkPort(value) == nil {
		return nil
	}
	return fmt.Errorf("%q is not a port, 1 to 65535, or 0 for none", value)
}

func checkScrapeTargets(value string) error {
	_, err := mesh.ScrapeTargets(value)
	return err
}

// checkPortList checks a list of ports, which may be empty.
func checkPortList(value string) error {
	for _, item := range splitList(value) {
		if err := checkPort(item); err != nil {
			return fmt.Errorf("%w: want ports separated by commas", err)
		}
	}
	return nil
}

// checkPorts checks a list of ports, or "*" for all.
func checkPorts(value string) error {
	if value == "*" {
		return nil
	}
	if err := checkPortList(value); err != nil {
		return fmt.Errorf("%w, or \"*\"", err)
	}
	return nil
}

// checkRangeList checks a list of addresses and ranges, which may be empty.
func checkRangeList(value string) error {
	return checkEach(splitList(value), isRange, "is not an address range such as 10.0.0.0/8: want ranges separated by commas")
}

func isRange(item string) bool {
	if ip, err := netip.ParseAddr(item); err == nil {
		return ip.Zone() == ""
	}
	_, err := netip.ParsePrefix(item)
	return err == nil
}

// checkRanges checks a list of address ranges, or "*" for all.
func checkRanges(value string) error {
	if value == "*" {
		return nil
	}
	if err := checkRangeList(value); err != nil {
		return fmt.Errorf("%w, or \"*\"", err)
	}
	return nil
}

// maxInterface is the longest name of an interface in Linux.
const maxInterface = 15

// interfaceName matches the name of an interface; a "+" at its end stands for any text.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,15}\+?$`)

func checkInterfaces(value string) error {
	return checkEach(splitList(value), func(item string) bool { return len(item) <= maxInterface && interfaceName.MatchString(item) }, "is not the name of an interface: want names separated by commas")
}

func numberFrom(least int64) func(string) error {
	return func(value string) error {
		if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < least {
			return fmt.Errorf("%q is not a whole number from %d", value, least)
		}
		return nil
	}
}

// named returns the items of a JSON list of objects with a name, or of a JSON object whose
// keys are the names.
func named[T any](text string, name func(*T) *string) ([]T, error) {
	if text == "" {
		return nil, nil
	}
	var list []T
	if decodeKube([]byte(text), &list) != nil {
		var byName map[string]T
		if err := decodeKube([]byte(text), &byName); err != nil {
			return nil, fmt.Errorf("%w: want a JSON object by name, or a list", err)
		}
		for _, key := range slices.Sorted(maps.Keys(byName)) {
			item := byName[key]
			*name(&item) = key
			list = append(list, item)
		}
	}
	for i := range list {
		if n := *name(&list[i]); len(validation.IsDNS1123Label(n)) > 0 {
			return nil, fmt.Errorf("%q is not the name of a volume", n)
		}
	}
	return list, nil
}

func userVolumes(text string) ([]corev1.Volume, error) {
	return named(text, func(v *corev1.Volume) *string { return &v.Name })
}

func userMounts(text string) ([]corev1.VolumeMount, error) {
	list, err := named(text, func(m *corev1.VolumeMount) *string { return &m.Name })
	for _, m := range list {
		if m.MountPath == "" {
			return nil, errors.New("volume " + m.Name + " has no mountPath")
		}
	}
	return list, err
}
