package wire

import (
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// StatName returns the name of the statistics of a port by a pattern of MeshConfig. It
// returns "" for no pattern.
func StatName(pattern string, svc *snapshot.MeshService, port *snapshot.ServicePort, subset string, target uint32) string {
	if pattern == "" {
		return ""
	}
	short := svc.Host
	if name, namespace, ok := svc.KubernetesName(); ok {
		short = name + "." + namespace
	}
	return strings.NewReplacer(
		"%SERVICE%", short, "%SERVICE_NAME%", svc.Name, "%SERVICE_FQDN%", svc.Host, "%SERVICE_PORT%", PortString(port.Number),
		"%SERVICE_PORT_NAME%", port.Name, "%TARGET_PORT%", PortString(target), "%SUBSET_NAME%", subset,
	).Replace(pattern)
}
