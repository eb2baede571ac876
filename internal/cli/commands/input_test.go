package commands

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestInterruptedInput interrupts commands that wait for input.
func TestInterruptedInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, fifo, silent := filepath.Join(dir, "ca"), filepath.Join(dir, "fifo"), filepath.Join(dir, "silent")
	config := filepath.Join(dir, "config")
	for _, path := range []string{fifo, silent, config} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(ctx context.Context, in io.Reader, args ...string) (int, string) {
		var out, talk bytes.Buffer
		code := Run(ctx, &cli.Env{Stdin: in, Stdout: &out, Stderr: &talk, LookupEnv: func(string) (string, bool) { return "", false }, Now: time.Now}, args)
		return code, talk.String()
	}
	if code, talk := run(t.Context(), nil, "certs", "root-ca", "--out", ca); code != 0 {
		t.Fatal(talk)
	}
	for name, tt := range map[string]struct {
		args []string
		// begun returns when the command waits, or soon before.
		begun func(stdin *io.PipeWriter)
	}{
		"dump":          {[]string{"pc", "clusters", "-f", "-"}, begin},
		"two dumps":     {[]string{"pc", "diff", "file:-", "file:" + fifo}, begin},
		"certificates":  {[]string{"certs", "verify", "-"}, begin},
		"request":       {[]string{"certs", "leaf", "--ca", ca, "--csr", "-", "--dns", "x.example.com", "--out", "-"}, begin},
		"silent writer": {[]string{"pc", "clusters", "-f", silent}, func(*io.PipeWriter) { open(t, silent) }},
		"configuration": {[]string{"version", "--config", config}, func(*io.PipeWriter) { open(t, config) }},
		"no writer":     {[]string{"pc", "clusters", "-f", fifo}, func(*io.PipeWriter) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, stdin := io.Pipe()
			defer func() { _ = stdin.Close() }() // ends the abandoned read
			ctx, interrupt := context.WithCancel(t.Context())
			go func() {
				tt.begun(stdin)
				interrupt()
			}()
			if code, talk := run(ctx, in, tt.args...); code != cli.ExitFailure || talk != "Error: interrupted\n" {
				t.Errorf("exit code %d, %q", code, talk)
			}
		})
	}
}

// begin returns once a command has read from its input.
func begin(stdin *io.PipeWriter) { _, _ = stdin.Write([]byte("{")) }

// open opens a pipe for writing until the test ends. It waits for a reader.
func open(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { _ = f.Close() })
}

// TestInterruptedQuestion interrupts a command that waits for a response.
func TestInterruptedQuestion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"ps"}, {"ps", "web.apps"}} {
		asked := make(chan struct{}, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		}))
		t.Cleanup(server.Close)
		ctx, interrupt := context.WithCancel(t.Context())
		go func() {
			<-asked
			interrupt()
		}()
		var out, talk bytes.Buffer
		env := &cli.Env{Stdout: &out, Stderr: &talk, LookupEnv: clitest.HomeOnly(t.TempDir()), Now: time.Now}
		code := Run(ctx, env, append(args, "--server", server.Listener.Addr().String()))
		if code != cli.ExitFailure || talk.String() != "Error: interrupted\n" || out.Len() > 0 {
			t.Errorf("%v: exit code %d, %q, %q", args, code, talk.String(), out.String())
		}
	}
}
