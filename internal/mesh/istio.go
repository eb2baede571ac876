package mesh

// Ports of Istio's contracts.
const (
	PortEnvoyAdmin      = 15000
	PortOutbound        = 15001
	PortInbound         = 15006
	PortPlaintextXDS    = 15010
	PortSecureXDS       = 15012
	PortMonitoring      = 15014
	PortAgentStatus     = 15020
	PortEnvoyReadiness  = 15021
	PortEnvoyPrometheus = 15090
	PortEastWest        = 15443
)

// Labels and annotations of Istio's contracts.
const (
	LabelNetwork           = "topology.istio.io/network"
	LabelSubzone           = "topology.istio.io/subzone"
	LabelRegion            = "topology.kubernetes.io/region"
	LabelZone              = "topology.kubernetes.io/zone"
	LabelTLSMode           = "security.istio.io/tlsMode"
	LabelGatewayPort       = "networking.istio.io/gatewayPort"
	LabelLocality          = "istio-locality"
	LabelCanonicalName     = "service.istio.io/canonical-name"
	LabelCanonicalRevision = "service.istio.io/canonical-revision"
	LabelServiceName       = "kubernetes.io/service-name"
	LabelMCSServiceName    = "multicluster.kubernetes.io/service-name"

	AnnotationExportTo  = "networking.istio.io/exportTo"
	AnnotationTemplates = "inject.istio.io/templates"
	// AnnotationHealthChecks of a WorkloadEntry, when "true", has it be healthy only
	// while its condition ConditionHealthy says so.
	AnnotationHealthChecks = "proxy.istio.io/health-checks-enabled"
	ConditionHealthy       = "Healthy"
)

// TLSModeIstio is the value of LabelTLSMode on pods that accept mesh mTLS.
const TLSModeIstio = "istio"

// GRPCServerListener is what the names of the listeners begin with that gRPC
// servers ask for; the address that the server listens on follows.
const GRPCServerListener = "xds.istio.io/grpc/lds/inbound/"

// MetadataNamespace is where endpoints have metadata of meshctl's own, and
// MetadataNetwork the key of the network there, when it is not the proxy's.
const (
	MetadataNamespace = "meshctl"
	MetadataNetwork   = "network"
)
