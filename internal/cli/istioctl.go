package cli

import "github.com/spf13/cobra"

// experimentalName is the group of the commands that istioctl has as experimental ones.
const experimentalName = "experimental"

// counterpart says what of meshctl does the work of a command of istioctl that
// meshctl does not have, by the command's name; empty when the name is not one of
// istioctl's.
func counterpart(name string) string {
	const (
		install = "meshctl installs nothing: kubectl applies the objects of deploy/"
		inject  = "meshctl has no injector: pods run meshctl agent"
		ambient = "meshctl has no ambient mode: proxies are sidecars and gateways"
		objects = "meshctl has no such command: meshctl serve reports objects that it cannot use in its log and at /ready?verbose"
	)
	switch name {
	case "admin", "istiod":
		return "the nearest is meshctl log-level, which shows and sets what control planes log"
	case "analyze", "validate", "v":
		return objects
	case "authz":
		return "meshctl has no such command: meshctl pc listeners POD -o json shows the filters of a proxy"
	case "bug-report":
		return "meshctl has no such command: meshctl pc all POD -o json, meshctl ps -o json and meshctl xds timeline -o json are what to send"
	case "config":
		return "the nearest is meshctl environment, which explains variables and the configuration file"
	case "dashboard", "dash", "d":
		return "meshctl has no dashboards: meshctl ps, meshctl pc and meshctl xds show in the terminal what proxies have"
	case "describe", "des":
		return "the nearest are meshctl explain endpoints SERVICE --from POD and meshctl pc all POD"
	case "envoy-stats", "es":
		return "meshctl has no such command: Envoy serves its statistics at /stats of its admin interface"
	case "install", "manifest", "operator", "profile", "upgrade", "uninstall", "post-install", "tag", "revision":
		return install
	case "kube-inject", "kube-uninject", "uninject", "check-inject", "injector", "add-to-mesh", "remove-from-mesh":
		return inject
	case "metrics":
		return "meshctl has no such command: control planes serve metrics at --monitoring-addr, Envoys at /stats/prometheus"
	case "options":
		return "the nearest is meshctl environment: every flag can be set there, too"
	case "precheck":
		return "meshctl has no such command: meshctl certs verify and meshctl remote-secret check find what is wrong before it is used"
	case "vm", "workload":
		return "meshctl has no such command: docs/virtual-machines.md shows how a virtual machine joins with meshctl agent"
	case "wait":
		return "the nearest are meshctl remote-clusters --wait and meshctl ps --fail"
	case "waypoint", "ztunnel-config", "zc":
		return ambient
	}
	return ""
}

// elsewhere returns the path of a command that is below the root, where a person
// looked for it in a group, or the other way round; empty when there is none.
func elsewhere(cmd *cobra.Command, name string) string {
	for _, group := range append([]*cobra.Command{cmd.Root()}, cmd.Root().Commands()...) {
		if group == cmd || group != cmd.Root() && group.Name() != experimentalName {
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
