// Package certscmd holds the commands certs and token.
package certscmd

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/cli"
)

func NewCerts(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make and check the certificates of a mesh",
		Long: `Make a root CA for the mesh and an intermediate CA for each cluster, in the
files that Istio's "cacerts" secret holds, and what hangs below and beside them.
The control plane of a cluster signs with its intermediate; the root's key is
needed only to add clusters, so keep it offline.

Files that belong together are written whole: whoever reads them sees the old
set or the new one, never a part or a mixture.`,
		Example: `  # a root, and the CAs of two clusters
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

// toStdout is the --out for standard output.
const toStdout = "-"

func printCA(w io.Writer, name string, a *certs.Authority) {
	fmt.Fprintf(w, "%s: valid until %s, SHA-256 %s\n",
		name, a.Cert.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(a.Cert))
}

// sayClamped tells on Stderr when a certificate does not live as long as was
// asked for. Less than a day is not worth a word.
func sayClamped(env *cli.Env, name string, end, wanted time.Time) {
	if wanted.Sub(end) > cli.Day {
		fmt.Fprintf(env.Stderr, "%s: ends at %s as what signs it does, not at %s\n",
			name, end.UTC().Format(time.RFC3339), wanted.UTC().Format(time.RFC3339))
	}
}

// generateTime is from when on a person is told that work is under way.
const generateTime = time.Second

// patiently does work, and says on Stderr what it is when it takes long.
func patiently(env *cli.Env, what string, work func() error) error {
	done, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-done:
		case <-time.After(generateTime):
			fmt.Fprintln(env.Stderr, what)
		}
	}()
	err := work()
	close(done)
	<-told // nothing else is written to Stderr before
	return err
}
