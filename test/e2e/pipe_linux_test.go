package e2e

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// A demo whose output goes to `head` ends in order: nothing is left, as after
// Ctrl-C.
func TestDemoEndsWhenNobodyReads(t *testing.T) {
	for _, row := range []struct {
		name, last string
		code       int
	}{
		{"before the check", "may choose from:", 1},
		{"in the live view", "cluster1: ", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCommand(t, harness.ShortDir(t))
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			c.stdout = bufio.NewReader(out)
			c.start(t)
			c.waitFor(t, row.last)
			if err := out.Close(); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := c.Wait(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := c.ProcessState.ExitCode(); code != row.code {
				t.Errorf("exit code %d, want %d", code, row.code)
			}
			noProcessesIn(t, c.temp)
			emptyDir(t, c.temp)
			noLogs(t, c)
		})
	}
}

// TestOutlivesTheReaderOfItsLog: control planes and agents go on when the reader of their log
// has gone, and end in order on SIGTERM.
func TestOutlivesTheReaderOfItsLog(t *testing.T) {
	for _, row := range []struct {
		name, url string
		args      []string
	}{
		{"serve", "http://127.3.0.2:8080/version", []string{
			"serve", "--config-dir", "mesh", "--grpc-addr", "", "--monitoring-addr", "",
			"--secure-grpc-addr", "127.3.0.2:15012", "--http-addr", "127.3.0.2:8080",
		}},
		{"agent", "http://127.3.0.1:15020/metrics", []string{
			"agent", "--no-envoy", "--bind-address", "127.3.0.1", "--pod-name", "client", "--pod-namespace", "sample",
			"--service-account", "client", "--discovery-address", "127.3.0.2:15012", "--root-ca", "root.pem",
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			work := harness.ShortDir(t)
			mustRun(t, "certs", "root-ca", "--out", filepath.Join(work, "root"))
			if err := errors.Join(os.Rename(filepath.Join(work, "root", "root-cert.pem"), filepath.Join(work, "root.pem")),
				os.Mkdir(filepath.Join(work, "mesh"), 0o700)); err != nil {
				t.Fatal(err)
			}
			reader, log, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := reader.Close(); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), meshctl, row.args...)
			cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, work
			cmd.Env = []string{"HOME=" + work}
			if err := errors.Join(cmd.Start(), log.Close()); err != nil {
				t.Fatal(err)
			}
			client := dial.HTTPClient(deadline, nil)
			defer client.CloseIdleConnections()
			eventually(t, row.name+" answers", func() error {
				resp, err := client.Get(row.url)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode != http.StatusOK {
					err = errors.New(resp.Status)
				}
				return errors.Join(err, resp.Body.Close())
			})
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
