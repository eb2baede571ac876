// Package certscmd holds the commands certs and token.
package certscmd

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/cli"
)

// NewCerts returns the command certs.
func NewCerts(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Create and check the certificates of a mesh",
		Long: `Create and check the certificates of a mesh: a root CA, an intermediate CA for each
cluster in the files of Istio's Secret "cacerts", and certificates of workloads. The
control plane of a cluster signs with its intermediate. The key of the root is needed
only to add clusters: keep it offline.

If files belong together, the commands replace all of them in one step. Other programs
read the old files or the new ones, never a mixture.`,
		Example: `  # Create a root and the CAs of two clusters
  meshctl certs root-ca --out certs
  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2`,
	}
	cmd.AddCommand(
		newCertsRootCmd(env),
		newCertsIntermediateCmd(env),
		newCertsCacertsCmd(env),
		newCertsLeafCmd(env),
		newCertsCRLCmd(env),
		newCertsBundleCmd(env),
		newCertsInspectCmd(env),
		newCertsVerifyCmd(env),
		newCertsExpiryCmd(env),
		newCertsStatusCmd(env),
		newCertsRotateCmd(env),
	)
	return cmd
}

// toStdout is the value of --out for standard output.
const toStdout = "-"

func printMade(env *cli.Env, name string, c *x509.Certificate) {
	fmt.Fprintf(env.Stdout, "%s: valid until %s, SHA-256 %s\n", name, c.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(c))
}

// noteClamped reports a certificate that expires at least a day before the wanted time.
func noteClamped(env *cli.Env, name string, end, wanted time.Time) {
	if wanted.Sub(end) > cli.Day {
		env.Notef("%s: expires with its signer at %s, not at %s",
			name, end.UTC().Format(time.RFC3339), wanted.UTC().Format(time.RFC3339))
	}
}

// generateTime is the time after which patiently prints its message.
const generateTime = time.Second

// patiently does work, and prints a message to Stderr when it takes long.
func patiently(env *cli.Env, message string, work func() error) error {
	done, printed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(printed)
		select {
		case <-done:
		case <-time.After(generateTime):
			env.Notef("%s", message)
		}
	}()
	err := work()
	close(done)
	<-printed // before any other message
	return err
}

// command lets cmd check its arguments with take before run.
func command(cmd *cobra.Command, take func(args []string) error, run func(context.Context) error) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs // checked by take
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := take(args); err != nil {
			return err
		}
		return run(cmd.Context())
	}
	return cmd
}

// oneArgument returns a take function for one argument.
func oneArgument(p *string, what string) func([]string) error {
	return func(args []string) error {
		if len(args) != 1 {
			return cli.Usagef("name one %s", what)
		}
		*p = args[0]
		return nil
	}
}
