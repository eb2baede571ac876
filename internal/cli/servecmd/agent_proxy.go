package servecmd

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/cli"
)

// unusedIstioFlags are flags of Istio's agent without effect.
var unusedIstioFlags = []string{
	"log_as_json", "log_caller", "log_output_level", "log_rotate", "log_stacktrace_level", "log_target",
	"stsPort", "templateFile", "tokenManagerPlugin",
}

// unusedFlag is the annotation of flags without effect.
const unusedFlag = "meshctl_unused"

func newAgentProxy(env *cli.Env) *cobra.Command {
	var o agentOptions
	var components string
	cmd := &cobra.Command{
		Use:   "proxy [sidecar|router]",
		Short: "Run with the command line of Istio's agent",
		Long: `Run meshctl agent with the arguments and the flags of "pilot-agent proxy", which Istio
writes into the specifications of pods. The flags of meshctl agent work, too. The log
names flags that have no effect.`,
		Example: `  meshctl agent proxy sidecar --domain sample.svc.cluster.local --proxyLogLevel=warning \
    --proxyComponentLogLevel=misc:error`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.flags.Type = args[0]
			}
			o.flags.LogLevel = strings.Trim(o.flags.LogLevel+","+components, ",")
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if f.Annotations[unusedFlag] != nil {
					o.unused = append(o.unused, f.Name)
				}
			})
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.bind(fs)
	o.bindDry(fs)
	fs.StringVar(&o.meshConfig, "meshConfig", agentconfig.DefaultMeshConfigFile, "`File` with a MeshConfig, as --mesh-config")
	fs.StringVar(&o.flags.LogLevel, "proxyLogLevel", "", "Log `level` of Envoy, as --proxy-log-level")
	fs.StringVar(&components, "proxyComponentLogLevel", "", "Log `levels` of components of Envoy, such as misc:error")
	fs.StringVar(&o.flags.ServiceCluster, "serviceCluster", "", "`Name` by which telemetry groups proxies (serviceCluster)")
	fs.StringVar(&o.flags.OutlierLog, "outlierLogPath", "", "`File` for the log of ejected hosts, as --outlier-log-path")
	for _, name := range unusedIstioFlags {
		fs.String(name, "", "Has no effect")
		f := fs.Lookup(name)
		f.Hidden, f.NoOptDefVal, f.Annotations = true, "true", map[string][]string{unusedFlag: {}}
	}
	return cmd
}
