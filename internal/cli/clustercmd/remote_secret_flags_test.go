package clustercmd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestRemoteSecretDeleteFrom: delete refuses --from with its former meaning, the clusters that
// have the secret.
func TestRemoteSecretDeleteFrom(t *testing.T) {
	t.Parallel()
	const want = "Error: --from east names the cluster itself, to revoke its tokens: name the clusters that have the secret with --to\n"
	for _, args := range []string{"delete west --from east", "delete west --from east --revoke-in west", "delete west --from east --to north --revoke-in west"} {
		var out, talk bytes.Buffer
		code := run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir()),
		}, append([]string{"remote-secret"}, strings.Fields(args)...))
		if code != cli.ExitUsage || out.Len() > 0 || !strings.HasPrefix(talk.String(), want) {
			t.Errorf("%s: exit code %d: %s%s", args, code, out.String(), talk.String())
		}
	}
}
