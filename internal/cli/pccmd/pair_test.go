package pccmd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestPairEndsWithTheFirstFailure: after an error the other Envoy is not waited for.
func TestPairEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	for _, cmd := range []string{"diff", "rc"} {
		var out, errs strings.Builder
		env := &cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir())}
		code := run(t.Context(), env, []string{"pc", cmd, silent.URL, "file:missing.json", "--timeout", "1h"})
		if code != cli.ExitFailure || out.Len() > 0 || !strings.Contains(errs.String(), "missing.json: no such file") {
			t.Errorf("%s: exit code %d: %s", cmd, code, errs.String())
		}
	}
}

// TestProxyConfigInterrupted: nothing is printed when the interrupt comes with the last byte.
func TestProxyConfigInterrupted(t *testing.T) {
	t.Parallel()
	const path = "../../proxyconfig/testdata/c1-sleep.config.json"
	dump, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"diff file:" + path + " file:-", "rc file:- file:" + path, "all -f -"} {
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errs strings.Builder
		in := readerFunc(func([]byte) (int, error) { interrupt(); return 0, io.EOF })
		env := &cli.Env{Stdin: io.MultiReader(bytes.NewReader(dump), in), Stdout: &out, Stderr: &errs, Now: time.Now, LookupEnv: clitest.HomeOnly(t.TempDir())}
		code := run(ctx, env, append([]string{"pc"}, strings.Fields(args)...))
		interrupt()
		if code != cli.ExitFailure || out.Len() > 0 || errs.String() != "Error: interrupted\n" {
			t.Errorf("%s: exit code %d: %.200s%s", args, code, out.String(), errs.String())
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
