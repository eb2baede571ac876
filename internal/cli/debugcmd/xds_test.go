package debugcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/test/clitest"
)

func TestXDSCommands(t *testing.T) {
	m := clitest.StartMesh(t, group())
	m.Eventually(`client-1\.apps-1 +CDS +request .* ACK `, "xds", "history", "client-1.apps")
	if code, _, stderr := m.Run("xds", "nacks"); code != 0 || !strings.Contains(stderr, "No response was refused by 1 proxy of control plane meshctl-") {
		t.Errorf("exit code %d, %s", code, stderr)
	}

	m.Service(81)
	const cluster = "outbound|81||web.apps.svc.cluster.local"
	if r := m.Next(""); len(r.GetResources()) != 1 || r.GetResources()[0].GetName() != cluster {
		t.Fatalf("the change sends %v", r)
	}
	m.Eventually(`CDS +change .* ACK .* Service apps/web of c1, .*web\.yaml:1`, "xds", "history", "client-1.apps-1")
	m.Eventually(`(?m)Service apps/web of c1, .*web\.yaml:1$`, "xds", "timeline")
	m.Eventually(`(?m)^\S+ +1 .* Cluster c1( and \d+ more)?$`, "xds", "timeline") // the first read of the cluster, not an object
	m.Eventually(`(?m)^CDS +shared +1 +1 +\d+ +\d+ `, "xds", "views")
	m.Eventually(`(?m)^CDS +shared .* everyone$`, "xds", "views")

	m.Service(82)
	m.Next("Error adding/updating cluster(s) outbound|82||web.apps.svc.cluster.local: no good")
	const refused = `client-1\.apps-1 +CDS +\w+ +outbound\|82\|\|web\.apps\.svc\.cluster\.local +Error .*no good`
	m.Eventually(`(?s)`+refused+`.*CDS +outbound\|82.* client-1\.apps-1 +error text +Error`, "xds", "nacks")

	var histories []history.History
	code, stdout, _ := m.Run("xds", "history", "client-1.apps", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &histories); code != 0 || err != nil || len(histories) != 1 || histories[0].Variant != "delta" {
		t.Fatalf("exit code %d, %v: %s", code, err, stdout)
	}
	if !slices.ContainsFunc(histories[0].Pushes, func(p history.Push) bool { return p.Answer == "NACK" && p.Change != nil }) {
		t.Errorf("no NACK in %s", stdout)
	}
	for _, command := range []string{"timeline", "nacks", "views"} {
		if code, stdout, _ := m.Run("xds", command, "-o", "json"); code != 0 || !json.Valid([]byte(stdout)) {
			t.Errorf("%s: exit code %d: %s", command, code, stdout)
		}
		if code, stdout, _ := m.Run("xds", command, "-o", "yaml"); code != 0 || strings.HasPrefix(stdout, "{") || stdout == "" {
			t.Errorf("%s: exit code %d: %s", command, code, stdout)
		}
	}
}

func TestXDSErrors(t *testing.T) {
	m := clitest.StartMesh(t, group())
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"xds", "history", "client.apps"}, 1, `no proxy "client.apps" is or was connected to .*, near are: client-1.apps`},
		{[]string{"xds", "history", "client"}, 1, `near are: client-1.apps`},
		{[]string{"xds", "history", "something.else"}, 1, `among 1 other; a proxy is named name.namespace`},
		{[]string{"xds", "history"}, 2, `want one workload: POD, POD.NAMESPACE or KIND/NAME`},
		{[]string{"xds", "views", "-o", "xml"}, 2, `use table, wide, name, csv, custom-columns=COLUMNS, json, yaml or jsonpath=TEMPLATE`},
	} {
		code, _, stderr := m.Run(tc.args...)
		if code != tc.code || !regexp.MustCompile(tc.want).MatchString(stderr) {
			t.Errorf("%v: exit code %d, want %d and %s: %s", tc.args, code, tc.code, tc.want, stderr)
		}
	}
	for _, tc := range []struct {
		server string
		code   int
		want   string
	}{
		{"ftp://a", 2, "want host:port"},
		{"http://a/path", 2, "want host:port"},
		{"127.0.0.1:1", 1, "--server takes the --http-addr of control planes"},
	} {
		m.Debug = tc.server
		code, _, stderr := m.Run("xds", "timeline")
		if code != tc.code || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, want %d and %s: %s", tc.server, code, tc.code, tc.want, stderr)
		}
	}
}

func TestXDSNACKsWatch(t *testing.T) {
	m := clitest.StartMesh(t, group())
	for i, format := range []string{"table", "json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			out, in := io.Pipe()
			var o xdsNACKsOptions
			o.ReplicaFlags = cli.ReplicaFlags{Servers: []string{m.Debug}, System: "istio-system"}
			o.Timeout, o.every, o.watch = clitest.Patience, time.Millisecond, true
			o.Output = output.Format(format)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := o.run(ctx, &cli.Env{Stdout: in, Stderr: io.Discard, LookupEnv: clitest.HomeOnly(m.Home), Now: time.Now}); err != nil {
					t.Error(err)
				}
				_ = in.Close()
			})
			m.T = t
			m.Service(1000 + i)
			reason := "refused " + format
			m.Next(reason)
			var seen bytes.Buffer
			buf := make([]byte, 4096)
			for !strings.Contains(seen.String(), reason) {
				n, err := out.Read(buf)
				if err != nil {
					t.Fatalf("%v after %s", err, seen.String())
				}
				seen.Write(buf[:n])
			}
			cancel()
			_, _ = io.Copy(&seen, out)
			wg.Wait()
			if strings.Count(seen.String(), reason) != 1 {
				t.Errorf("the NACK is shown more than once:\n%s", seen.String())
			}
		})
	}
}

// TestXDSHistoryWithoutProxies asks a control plane that never had a proxy.
func TestXDSHistoryWithoutProxies(t *testing.T) {
	m := clitest.StartMesh(t, group())
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("proxy") {
			http.Error(w, flightNotFound+"not found", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, "[]")
	}))
	defer empty.Close()
	m.Debug = empty.Listener.Addr().String()
	if code, _, stderr := m.Run("xds", "history", "web.apps"); code != 1 || !strings.Contains(stderr, ", nor any other; a proxy is named name.namespace") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestXDSAnswers: errors of other servers, and of control planes that refuse the caller,
// are shown.
func TestXDSAnswers(t *testing.T) {
	m := clitest.StartMesh(t, group())
	for _, tc := range []struct {
		code int
		body string
		want string
	}{
		{http.StatusUnauthorized, "this page needs a token", `^Error: 127\.0\.0\.1:\d+: answered 401 Unauthorized: "this page needs a token"; .*--token-file`},
		{http.StatusForbidden, "not \x1b[2Jfor you", `answered 403 Forbidden: "not \\x1b\[2Jfor you"\n`},
		{http.StatusNotFound, "404 page not found", `answered 404 Not Found: "404 page not found"; --server takes`},
		{http.StatusServiceUnavailable, strings.Repeat("a", 300), `answered 503 Service Unavailable: "a{300}"\n`},
		{http.StatusOK, "<html>", `^Error: 127\.0\.0\.1:\d+: answered what is no such page: .*; --server takes the --http-addr of control planes`},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.code)
			_, _ = io.WriteString(w, tc.body)
		}))
		m.Debug = server.Listener.Addr().String()
		code, stdout, stderr := m.Run("xds", "history", "web.apps")
		server.Close()
		if code != 1 || stdout != "" || !regexp.MustCompile(tc.want).MatchString(stderr) {
			t.Errorf("%d %.20q: exit code %d, want 1 and %s: %s%s", tc.code, tc.body, code, tc.want, stdout, stderr)
		}
	}
}
