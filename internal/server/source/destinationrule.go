package source

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var destinationRuleKind = istioKind(kind{
	group: groupNetworking, name: "DestinationRule", plural: "destinationrules", versions: istioVersions,
	support: fields.Partly, meaning: "see [its fields](#destinationrule)", fields: destinationRuleFields,
}, func(c *conversion, spec *networkingv1alpha3.DestinationRule) *fields.Error {
	c.object = &snapshot.DestinationRule{Meta: c.meta, Kind: snapshot.KindDestinationRule, Spec: spec}
	c.warnOfFiles("spec.trafficPolicy", spec.TrafficPolicy)
	for i, s := range spec.Subsets {
		c.warnOfFiles(fields.At("spec.subsets", i)+".trafficPolicy", s.GetTrafficPolicy())
	}
	return checkDestinationRule(spec)
})

func checkDestinationRule(d *networkingv1alpha3.DestinationRule) *fields.Error {
	names := map[string]bool{}
	return fields.AllFaults(
		fields.PatternFault("host", d.Host),
		checkTrafficPolicy("trafficPolicy", d.TrafficPolicy),
		fields.Each("subsets", d.Subsets, func(field string, s *networkingv1alpha3.Subset) *fields.Error {
			var name *fields.Error
			switch {
			case !mesh.IsDNSName(strings.ToLower(s.Name)): // it becomes part of a server name
				name = fields.Faultf(field+".name", "%q is not a DNS name", s.Name)
			case names[s.Name]:
				name = fields.Faultf(field+".name", "%q is given twice", s.Name)
			}
			names[s.Name] = true
			return fields.AllFaults(name, fields.LabelsFault(field+".labels", s.Labels), checkTrafficPolicy(field+".trafficPolicy", s.TrafficPolicy))
		}),
		fields.EachText("exportTo", d.ExportTo, fields.RuleExportFault),
		fields.LabelsFault("workloadSelector.matchLabels", d.WorkloadSelector.GetMatchLabels()),
	)
}

func checkTrafficPolicy(field string, p *networkingv1alpha3.TrafficPolicy) *fields.Error {
	if p == nil {
		return nil
	}
	parts := checkPolicyParts(field, p.LoadBalancer, p.ConnectionPool, p.OutlierDetection, p.Tls)
	ports := map[uint32]bool{}
	portLevel := fields.Each(field+".portLevelSettings", p.PortLevelSettings, func(field string, l *networkingv1alpha3.TrafficPolicy_PortTrafficPolicy) *fields.Error {
		var port *fields.Error
		number := l.GetPort().GetNumber()
		switch {
		case !fields.IsPort(number):
			port = fields.Faultf(field+".port.number", "%d is not a port: want 1 to 65535", number)
		case ports[number]:
			port = fields.Faultf(field+".port.number", "%d is given twice", number)
		}
		ports[number] = true
		return port.And(checkPolicyParts(field, l.LoadBalancer, l.ConnectionPool, l.OutlierDetection, l.Tls))
	})
	return fields.AllFaults(parts, portLevel, checkTunnel(field+".tunnel", p.Tunnel), retryBudgetFault(field+".retryBudget", p.RetryBudget))
}

func retryBudgetFault(field string, b *networkingv1alpha3.TrafficPolicy_RetryBudget) *fields.Error {
	faults := fields.DurationFault(field+".budgetInterval", b.GetBudgetInterval(), time.Millisecond)
	if percent := b.GetPercent().GetValue(); percent < 0 || percent > 100 {
		return fields.Faultf(field+".percent", "%v is not a percentage", percent).And(faults)
	}
	return faults
}

func checkTunnel(field string, t *networkingv1alpha3.TrafficPolicy_TunnelSettings) *fields.Error {
	if t == nil {
		return nil
	}
	var faults *fields.Error
	if _, err := netip.ParseAddr(t.TargetHost); err != nil && !mesh.IsDNSName(strings.ToLower(t.TargetHost)) {
		faults = faults.And(fields.Faultf(field+".targetHost", "%q is neither a host name nor an IP address", t.TargetHost))
	}
	if !fields.IsPort(t.TargetPort) {
		faults = faults.And(fields.Faultf(field+".targetPort", "%d is not a port: want 1 to 65535", t.TargetPort))
	}
	if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
		faults = faults.And(fields.Faultf(field+".protocol", "%q is none of CONNECT, POST", t.Protocol))
	}
	return faults
}

func checkPolicyParts(
	field string, lb *networkingv1alpha3.LoadBalancerSettings, pool *networkingv1alpha3.ConnectionPoolSettings,
	outlier *networkingv1alpha3.OutlierDetection, tls *networkingv1alpha3.ClientTLSSettings,
) *fields.Error {
	return fields.AllFaults(
		checkLoadBalancer(field+".loadBalancer", lb),
		fields.ConnectionPoolFault(field+".connectionPool", pool),
		fields.OutlierDetectionFault(field+".outlierDetection", outlier),
		checkClientTLS(field+".tls", tls),
	)
}

// Envoy's limits of the sizes of hash tables.
const (
	maxRing   = 8 << 20
	maxMaglev = 5000011
)

func checkLoadBalancer(field string, lb *networkingv1alpha3.LoadBalancerSettings) *fields.Error {
	faults := fields.LocalitiesFault(field+".localityLbSetting", lb.GetLocalityLbSetting())
	if hash := lb.GetConsistentHash(); hash != nil {
		field := field + ".consistentHash"
		if hash.GetHashKey() == nil {
			faults = faults.And(fields.Faultf(field, "has no key: want one of httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName"))
		}
		switch key := hash.GetHashKey().(type) {
		case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
			if name := key.HttpHeaderName; !fields.IsHeaderName(strings.TrimPrefix(name, ":")) {
				faults = faults.And(fields.Faultf(field+".httpHeaderName", "%q is not the name of a header", name))
			}
		case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
			if key.HttpQueryParameterName == "" {
				faults = faults.And(fields.Faultf(field+".httpQueryParameterName", "is empty"))
			}
		}
		if c := hash.GetHttpCookie(); c != nil && c.Name == "" {
			faults = faults.And(fields.Faultf(field+".httpCookie.name", "is missing"))
		}
		if ttl := hash.GetHttpCookie().GetTtl(); ttl != nil && ttl.AsDuration() < 0 {
			faults = faults.And(fields.Faultf(field+".httpCookie.ttl", "%v is negative", ttl.AsDuration()))
		}
		if n := max(hash.GetRingHash().GetMinimumRingSize(), hash.GetMinimumRingSize()); n > maxRing { //nolint:staticcheck // the older field
			faults = faults.And(fields.Faultf(field+".ringHash.minimumRingSize", "%d is more than %d", n, maxRing))
		}
		if n := hash.GetMaglev().GetTableSize(); n > maxMaglev || n > 0 && !isPrime(n) {
			faults = faults.And(fields.Faultf(field+".maglev.tableSize", "%d is not a prime number up to %d", n, maxMaglev))
		}
	}
	if w := lb.GetWarmup(); w != nil {
		field := field + ".warmup"
		if w.Duration == nil {
			faults = faults.And(fields.Faultf(field+".duration", "is missing"))
		}
		if p := w.GetMinimumPercent().GetValue(); p < 0 || p > 100 {
			faults = faults.And(fields.Faultf(field+".minimumPercent", "%v is not a percentage", p))
		}
		if a := w.GetAggression(); a != nil && !(a.GetValue() > 0) { // Envoy divides by it
			faults = faults.And(fields.Faultf(field+".aggression", "%v is not above 0", a.GetValue()))
		}
		return faults.And(fields.DurationFault(field+".duration", w.Duration, time.Millisecond))
	}
	return faults.And(fields.DurationFault(field+".warmupDurationSecs", lb.GetWarmupDurationSecs(), time.Millisecond))
}

func isPrime(n uint64) bool {
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

func checkClientTLS(field string, t *networkingv1alpha3.ClientTLSSettings) *fields.Error {
	if t == nil {
		return nil
	}
	var faults *fields.Error
	pair := t.ClientCertificate != "" || t.PrivateKey != ""
	switch t.Mode {
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		if pair || t.CaCertificates != "" || t.CredentialName != "" {
			faults = faults.And(fields.Faultf(field, "ISTIO_MUTUAL uses the certificates of the mesh: it takes no others"))
		}
	case networkingv1alpha3.ClientTLSSettings_MUTUAL:
		if t.CredentialName == "" && (t.ClientCertificate == "" || t.PrivateKey == "") {
			faults = faults.And(fields.Faultf(field, "MUTUAL needs a credentialName, or clientCertificate and privateKey"))
		}
	}
	if t.CredentialName != "" {
		faults = faults.And(clientCredentialFault(field+".credentialName", t))
	}
	for _, f := range clientFiles(t) {
		if !path.IsAbs(f.path) {
			faults = faults.And(fields.Faultf(field+"."+f.name, "%q is not an absolute path", f.path))
		}
		if strings.Contains(f.path, "~") { // it separates paths in names of secrets
			faults = faults.And(fields.Faultf(field+"."+f.name, "%q contains ~", f.path))
		}
	}
	if i := slices.Index(t.SubjectAltNames, ""); i >= 0 {
		faults = faults.And(fields.Faultf(fields.At(field+".subjectAltNames", i), "is empty"))
	}
	if len(t.Sni) > maxServerName || strings.ContainsFunc(t.Sni, func(r rune) bool { return r <= ' ' || r > '~' }) {
		faults = faults.And(fields.Faultf(field+".sni", "%q is not a server name", t.Sni))
	}
	return faults
}

// maxServerName is the size of the longest server name that TLS can send, in bytes.
const maxServerName = 255

// clientFile is a field with the path of a file.
type clientFile struct{ name, path string }

// clientFiles returns the fields with paths that are set.
func clientFiles(t *networkingv1alpha3.ClientTLSSettings) []clientFile {
	return slices.DeleteFunc([]clientFile{
		{"clientCertificate", t.GetClientCertificate()},
		{"privateKey", t.GetPrivateKey()},
		{"caCertificates", t.GetCaCertificates()},
		{"caCrl", t.GetCaCrl()},
	}, func(f clientFile) bool { return f.path == "" })
}

// warnOfFiles reports files beside a Secret, which the proxies that get the Secret do not use.
func (c *conversion) warnOfFiles(field string, p *networkingv1alpha3.TrafficPolicy) {
	report := func(field string, t *networkingv1alpha3.ClientTLSSettings) {
		for _, f := range clientFiles(t) {
			if t.CredentialName != "" {
				c.warn(fields.Faultf(field+".tls."+f.name, "is not used by proxies that use credentialName"))
			}
		}
	}
	report(field, p.GetTls())
	for i, l := range p.GetPortLevelSettings() {
		report(fields.At(field+".portLevelSettings", i), l.GetTls())
	}
}

func clientCredentialFault(field string, t *networkingv1alpha3.ClientTLSSettings) *fields.Error {
	ref, isMap := strings.CutPrefix(t.CredentialName, snapshot.ConfigMapPrefix)
	namespace, name, two := strings.Cut(ref, "/")
	switch {
	case !isMap && !mesh.IsDNSName(ref):
		return fields.Faultf(field, "%q is neither the name of a Secret nor %sNAMESPACE/NAME", t.CredentialName, snapshot.ConfigMapPrefix)
	case isMap && (!two || !mesh.IsDNSLabel(namespace) || !mesh.IsDNSName(name)):
		return fields.Faultf(field, "%q has not the form %sNAMESPACE/NAME", t.CredentialName, snapshot.ConfigMapPrefix)
	case isMap && t.Mode == networkingv1alpha3.ClientTLSSettings_MUTUAL:
		return fields.Faultf(field, "MUTUAL needs a Secret: a ConfigMap has no key")
	}
	return nil
}

// destinationRuleFields has the same rows for each of the places of a policy.
var destinationRuleFields = slices.Concat(
	[]fields.Field{
		{Path: "host", Support: fields.Works},
		{Path: "exportTo", Support: fields.Works},
		{Path: "workloadSelector", Support: fields.Works},
		{Path: "trafficPolicy", Support: fields.Partly, Meaning: "`loadBalancer`, `connectionPool`, `outlierDetection`, `tls`, `tunnel`, `proxyProtocol` and `retryBudget`"},
	},
	trafficPolicyFields("trafficPolicy"),
	[]fields.Field{
		{Path: "trafficPolicy.portLevelSettings", Support: fields.Partly, Meaning: "its fields, as in `trafficPolicy`"},
	},
	policyPartFields("trafficPolicy.portLevelSettings"),
	[]fields.Field{
		{Path: "subsets", Support: fields.Partly, Meaning: "`name`, `labels` and `trafficPolicy`"},
		{Path: "subsets.trafficPolicy", Support: fields.Partly, Meaning: "its fields, as in `trafficPolicy`"},
	},
	trafficPolicyFields("subsets.trafficPolicy"),
	[]fields.Field{{Path: "subsets.trafficPolicy.portLevelSettings", Support: fields.Partly, Meaning: "its fields, as in `trafficPolicy`"}},
	policyPartFields("subsets.trafficPolicy.portLevelSettings"),
)

func trafficPolicyFields(path string) []fields.Field {
	return append(policyPartFields(path),
		fields.Field{Path: path + ".tunnel", Support: fields.Works, Meaning: "for TCP and TLS routes of VirtualServices"},
	)
}

func policyPartFields(path string) []fields.Field {
	return []fields.Field{
		{Path: path + ".loadBalancer", Support: fields.Partly, Meaning: "all fields except `zoneAwareLbSetting`; the deprecated `consistentHash.minimumRingSize` counts as 1024 if it is less, `consistentHash.ringHash.minimumRingSize` as it is"},
		{Path: path + ".loadBalancer.zoneAwareLbSetting", Support: fields.NoEffect, Meaning: fields.NoZoneAware},
		{Path: path + ".connectionPool", Support: fields.Works, Meaning: "`tcp` and `http`; also for inbound connections of the service's workloads"},
		{Path: path + ".outlierDetection", Support: fields.Partly, Meaning: "all fields except `consecutiveErrors`"},
		{Path: path + ".outlierDetection.consecutiveErrors", Support: fields.NoEffect, Meaning: "use `consecutive5xxErrors`"},
		{Path: path + ".tls", Support: fields.Works},
	}
}
