package mesh

import "strings"

// IstioVersion is the version of Istio with which agents and control planes are compatible.
const IstioVersion = "1.31.1"

// AgentVersion is the version that an agent reports in the metadata ISTIO_VERSION. It does not begin
// with a number: control planes of Istio compare numbers with versions.
func AgentVersion(own string) string { return agentPrefix + own }

const agentPrefix = "meshctl-"

// IsAgentVersion reports whether ISTIO_VERSION is that of an agent of meshctl.
func IsAgentVersion(version string) bool { return strings.HasPrefix(version, agentPrefix) }

// Ports of Istio's contracts.
const (
	PortWebhooks        = 15017
	PortEnvoyAdmin      = 15000
	PortOutbound        = 15001
	PortInbound         = 15006
	PortPlaintextXDS    = 15010
	PortSecureXDS       = 15012
	PortMonitoring      = 15014
	PortAgentStatus     = 15020
	PortEnvoyReadiness  = 15021
	PortAgentDNS        = 15053
	PortEnvoyPrometheus = 15090
	PortEastWest        = 15443
	PortAgentDebug      = 15004 // of Istio's agent
	PortAgentTokens     = 15463 // exchange of tokens, where it is not at another port
)

// IsProxyPort reports whether Envoy or its agent listens on the port by default.
func IsProxyPort(port uint32) bool {
	switch port {
	case PortEnvoyAdmin, PortOutbound, PortAgentDebug, PortInbound, PortAgentStatus, PortEnvoyReadiness, PortAgentDNS, PortEnvoyPrometheus, PortAgentTokens:
		return true
	}
	return false
}

// The addresses of the loopback interface from which Envoy calls its application.
const (
	PassthroughIPv4 = "127.0.0.6"
	PassthroughIPv6 = "::6"
)

// MarkTransparent marks the packets of connections that an Envoy opens to its application from the
// address of a client (interception mode TPROXY).
const MarkTransparent = 1337

// VariableProbesAtLoopback makes the agent probe the application at the loopback address.
const VariableProbesAtLoopback = "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"

// Labels and annotations of Istio's contracts.
const (
	LabelNetwork           = "topology.istio.io/network"
	LabelGatewayName       = "gateway.networking.k8s.io/gateway-name" // of the pods of a Gateway of the Kubernetes Gateway API
	LabelSubzone           = "topology.istio.io/subzone"
	LabelRegion            = "topology.kubernetes.io/region"
	LabelZone              = "topology.kubernetes.io/zone"
	LabelCluster           = "topology.istio.io/cluster"
	LabelHostname          = "kubernetes.io/hostname"
	LabelTLSMode           = "security.istio.io/tlsMode"
	LabelGatewayPort       = "networking.istio.io/gatewayPort"
	LabelLocality          = "topology.istio.io/locality"
	LabelOldLocality       = "istio-locality"
	LabelCanonicalName     = "service.istio.io/canonical-name"
	LabelCanonicalRevision = "service.istio.io/canonical-revision"
	LabelServiceName       = "kubernetes.io/service-name"
	LabelMCSServiceName    = "multicluster.kubernetes.io/service-name"

	AnnotationExportTo = "networking.istio.io/exportTo"
	// AnnotationDistribution is for Services without trafficDistribution, for ServiceEntries and for
	// Namespaces.
	AnnotationDistribution = "networking.istio.io/traffic-distribution"
	// AnnotationNodeSelector makes the nodes with these labels, in JSON, the addresses of a
	// NodePort Service that is a gateway.
	AnnotationNodeSelector = "traffic.istio.io/nodeSelector"
	// AnnotationControlPlaneClusters of the system namespace lists the clusters whose control
	// planes may write the roots of the mesh to this cluster; * means all.
	AnnotationControlPlaneClusters = "topology.istio.io/controlPlaneClusters"

	// AnnotationConfigCluster of the pods of a control plane names the cluster that it reads
	// instead of its own.
	AnnotationConfigCluster = "meshctl.io/config-cluster"

	// AnnotationCopyOf of a ConfigMap names the ConfigMap of which it is a copy. The control plane
	// writes its data.
	AnnotationCopyOf = "meshctl.io/copy-of"

	AnnotationTemplates = "inject.istio.io/templates"
	// AnnotationHealthChecks set to "true" makes a WorkloadEntry healthy only while
	// its condition ConditionHealthy is true.
	AnnotationHealthChecks = "proxy.istio.io/health-checks-enabled"
	ConditionHealthy       = "Healthy"
	// AnnotationSuppress lists the codes of findings that are not reported of the object.
	AnnotationSuppress = "galley.istio.io/analyze-suppress"
)

// MeshConfigMap is the ConfigMap in the system namespace with the MeshConfig. Control planes of all
// revisions read it.
const MeshConfigMap = "istio"

// ConfigMapOf returns the name of the ConfigMap in which tools look for the MeshConfig of a
// revision.
func ConfigMapOf(revision string) string {
	if revision == "" || revision == DefaultRevision {
		return MeshConfigMap
	}
	return MeshConfigMap + "-" + revision
}

// The ConfigMap with the settings of the injector without a revision, in the system
// namespace, and its keys.
const (
	InjectorConfigMap = "istio-sidecar-injector"
	InjectorKeyValues = "values"
	InjectorKeyConfig = "config"
)

// DefaultRevision is the revision of a control plane without another one.
const DefaultRevision = "default"

// InjectorConfigMapOf returns the name of the ConfigMap with the settings of the injector of
// a revision.
func InjectorConfigMapOf(revision string) string {
	if revision == "" || revision == DefaultRevision {
		return InjectorConfigMap
	}
	return InjectorConfigMap + "-" + revision
}

// TLSModeIstio is the value of LabelTLSMode on pods that accept mesh mTLS.
const TLSModeIstio = "istio"

// Names of the secrets that an agent serves to its Envoy.
const (
	SecretCertificate = "default"
	SecretRoots       = "ROOTCA" // with the revocation lists
	// SecretFileCertificate precedes the paths of a certificate and its key, which a "~"
	// separates. SecretFileRoots precedes the path of CA certificates, or "system"; the path
	// of revocation lists may follow after a "~".
	SecretFileCertificate = "file-cert:"
	SecretFileRoots       = "file-root:"
)

// MetadataRelay is the metadata of a node whose stream an agent of meshctl relays, with value
// "true". It resumes streams with the endpoints that Envoy holds, unless a cluster waits for
// endpoints.
const MetadataRelay = "MESHCTL_RELAY"

// MetadataVirtualHosts is the metadata of a node whose stream an agent of meshctl relays, with value
// "true", if the agent knows which virtual hosts Envoy has: it resumes streams with these.
const MetadataVirtualHosts = "MESHCTL_VIRTUAL_HOSTS"

// GRPCServerListener is the prefix of the listener that a gRPC server requests. The
// address on which the server listens follows.
const GRPCServerListener = "xds.istio.io/grpc/lds/inbound/"

// MetadataNamespace is the namespace of meshctl's own metadata of endpoints. There,
// MetadataNetwork has the network of an endpoint outside the proxy's network.
const (
	MetadataNamespace = "meshctl"
	MetadataNetwork   = "network"
)

// Templates for applications whose gRPC library is the xDS client, so that they need no proxy.
const (
	TemplateGRPCAgent  = "grpc-agent"
	TemplateGRPCSimple = "grpc-simple"
)

// IsProxyless reports whether a template in the annotations of a pod is for an application that
// needs no proxy.
func IsProxyless(annotations map[string]string) bool {
	for t := range strings.SplitSeq(annotations[AnnotationTemplates], ",") {
		if t = strings.TrimSpace(t); t == TemplateGRPCAgent || t == TemplateGRPCSimple {
			return true
		}
	}
	return false
}
