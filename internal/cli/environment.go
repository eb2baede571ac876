package cli

import "github.com/spf13/cobra"

func newEnvironmentTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Environment variables and the configuration file",
		Long: `Every flag of every command can also be set by an environment variable and in
one configuration file. The first of these that has a value counts:

  1. the flag                     --trust-domain prod.example
  2. the environment variable     MESHCTL_TRUST_DOMAIN=prod.example
  3. the configuration file       trust-domain: prod.example
  4. the default that --help shows

Flags of which only one may be given, such as --admin and --file, are one choice: a
typed --file counts, whatever MESHCTL_ADMIN or the file's key admin say.

--context of the commands that work on all clusters that it names, such as certs
verify, has MESHCTL_CONTEXTS and the key contexts: MESHCTL_CONTEXT and the key context
are the one cluster that other commands ask.

A variable is MESHCTL_ and the flag's name in upper case with - written as _.
An empty variable counts as not set. A flag that may be repeated takes its
values separated by commas.

The file is the one that --config (or MESHCTL_CONFIG) names, else
$XDG_CONFIG_HOME/meshctl/config.yaml, else ~/.config/meshctl/config.yaml if it
exists; never a file of the working directory. It is YAML: flag names as keys,
a list for a flag that may be repeated. A key that is no flag of any command
is an error.

A flag that weakens security, such as --insecure, --insecure-remote or --force, is
named in a warning on standard error whenever its value is from a variable or the
file.

  trust-domain: prod.example
  remote-dir:
    - cluster2=/etc/mesh/cluster2`,
	}
}
