package cli

import "github.com/spf13/cobra"

// ExperimentalName is the group of the commands that are experimental in istioctl.
const ExperimentalName = "experimental"

// counterpart returns what to use instead of an istioctl command that meshctl does not
// have, empty for any other name.
func counterpart(name string) string {
	switch name {
	case "admin", "istiod":
		return "to show and set the log levels of control planes: meshctl log-level"
	case "bug-report":
		return "there is no such command; for a dump without private keys: meshctl pc all WORKLOAD -o json"
	case "config", "options":
		return "for the variables and the configuration file: meshctl environment"
	case "dashboard", "dash", "d":
		return "there are no dashboards; for a live view of the proxies: meshctl ps -w"
	case "describe", "des":
		return "to show how a proxy reaches a service: meshctl explain endpoints SERVICE --from WORKLOAD; to show the policies of its ports: meshctl authz list WORKLOAD"
	case "envoy-stats", "es":
		return "there is no such command; Envoy serves its statistics at /stats of its admin interface"
	case "operator", "profile", "post-install":
		return "there is no such command; to install a control plane and gateways: meshctl install"
	case "tag", "revision":
		return "there is no such command; to install another revision: meshctl install --revision NAME --revision-tag TAG"
	case "check-inject", "injector", "add-to-mesh", "remove-from-mesh", "kube-uninject", "uninject":
		return "there is no such command; to add the sidecar to pods of files: meshctl inject"
	case "metrics":
		return "there is no such command; control planes serve metrics at --monitoring-addr, Envoys at /stats/prometheus"
	case "precheck":
		return "to find what is wrong before an installation: meshctl check pre"
	case "verify-install":
		return "to check an installation, its control planes and proxies: meshctl check"
	case "vm":
		return "to write the files of a virtual machine: meshctl workload entry configure"
	case "wait":
		return "to wait until all clusters are synced: meshctl remote-clusters --wait"
	case "waypoint", "ztunnel-config", "zc":
		return "there is no ambient mode; proxies are sidecars and gateways"
	}
	return ""
}

// counterpartFlag returns what to use instead of a flag of istioctl that a command of meshctl does not
// have, empty for any other name.
func counterpartFlag(name string) string {
	switch name {
	case "remote-contexts":
		return "--context EAST,WEST names several clusters, and --all-clusters those that the remote secrets name"
	case "color", "vklog", "log_output_level":
		return "leave it out"
	case "revision", "revisions":
		return "the command is about all revisions: leave it out"
	}
	return ""
}

// elsewhere returns the path of a command that is in another group than the typed one,
// empty when there is none.
func elsewhere(cmd *cobra.Command, name string) string {
	for _, group := range append([]*cobra.Command{cmd.Root()}, cmd.Root().Commands()...) {
		if group == cmd || group != cmd.Root() && group.Name() != ExperimentalName {
			continue
		}
		for _, sub := range group.Commands() {
			if sub.Name() == name || sub.HasAlias(name) {
				return sub.CommandPath()
			}
		}
	}
	return ""
}
