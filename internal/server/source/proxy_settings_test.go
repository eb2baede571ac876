package source

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/proxysettings"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestProxySettingsThatAgentsRefuse: the rest of the MeshConfig holds, and new pods start.
func TestProxySettingsThatAgentsRefuse(t *testing.T) {
	for setting, field := range map[string]string{
		"proxyAdminPort: 65536":                                     "proxyAdminPort",
		"proxyAdminPort: 15020":                                     "statusPort",
		"statusPort: 15000":                                         "statusPort",
		"statusPort: 15021":                                         "statusPort",
		"proxyMetadata: {ENVOY_STATUS_PORT: \"15020\"}":             "statusPort",
		"proxyMetadata: {ENVOY_PROMETHEUS_PORT: x}":                 "proxyMetadata.ENVOY_PROMETHEUS_PORT",
		"proxyMetadata: {EXIT_ON_ZERO_ACTIVE_CONNECTIONS: maybe}":   "proxyMetadata.EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
		"proxyMetadata: {MINIMUM_DRAIN_DURATION: \"5\"}":            "proxyMetadata.MINIMUM_DRAIN_DURATION",
		"concurrency: -3":                                           "concurrency",
		"drainDuration: -1s":                                        "drainDuration",
		"terminationDrainDuration: 25h":                             "terminationDrainDuration",
		"fileFlushInterval: -1s":                                    "fileFlushInterval",
		"controlPlaneAuthPolicy: NONE":                              "controlPlaneAuthPolicy",
		"discoveryAddress: istiod:15010":                            "discoveryAddress",
		"extraStatTags: [a b]":                                      "extraStatTags",
		"readinessProbe: {periodSeconds: -1, tcpSocket: {port: 1}}": "readinessProbe",
		"readinessProbe: {periodSeconds: 1}":                        "readinessProbe",
	} {
		object := &corev1.ConfigMap{Data: map[string]string{"mesh": "trustDomain: mesh.test\ndefaultConfig: {" + strings.ReplaceAll(setting, "25h", "90000s") + "}"}}
		object.Name, object.Namespace = "istio", "istio-system"
		r, err := (&Converter{Remote: true}).Convert(object, snapshot.Place{})
		if err != nil {
			t.Errorf("%s: %v", setting, err)
			continue
		}
		m := r.Object.(*snapshot.MeshSettings).Mesh
		if left := proxysettings.Faults(m.DefaultConfig); len(left) > 0 || m.TrustDomain != "mesh.test" {
			t.Errorf("%s: left %v, trust domain %s", setting, left, m.TrustDomain)
		}
		if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Error(), "defaultConfig."+field+":") || !strings.Contains(r.Warnings[0].Error(), "the default is used") {
			t.Errorf("%s: warnings %v, want one of %s", setting, r.Warnings, field)
		}
	}
}
