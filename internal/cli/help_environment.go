package cli

import "github.com/spf13/cobra"

func newEnvironmentTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Environment variables and the configuration file",
		Long: `Every flag of every command can also be set by an environment variable and in one
configuration file. meshctl uses the first of these that has a value:

  1. the flag                     --trust-domain prod.example
  2. the environment variable     MESHCTL_TRUST_DOMAIN=prod.example
  3. the configuration file       trust-domain: prod.example
  4. the default that --help shows

Flags that exclude each other, such as --admin and --file, are one choice: --file on
the command line overrides MESHCTL_ADMIN and the key admin.

Some commands, such as certs verify, work on all clusters in --context. For these
commands the variable is MESHCTL_CONTEXTS and the key is contexts. MESHCTL_CONTEXT and
the key context apply to commands that work on one cluster.

The name of a variable is MESHCTL_ and the flag's name in upper case, with _ for -.
Empty variables are ignored. The values of a repeatable flag are separated by commas.

The configuration file is --config (or MESHCTL_CONFIG), otherwise
$XDG_CONFIG_HOME/meshctl/config.yaml, otherwise ~/.config/meshctl/config.yaml, if it
exists and is readable. A file in the working directory is never read. The file is YAML with flag
names as keys, and lists for repeatable flags. A key that is not a flag of any command
is an error.

A flag that weakens security, such as --insecure, --insecure-remote or --force, is
named in a warning on standard error whenever its value is from a variable or the
file.

  trust-domain: prod.example
  remote-dir:
    - cluster2=/etc/mesh/cluster2`,
	}
}
