package debugcmd

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/clitest"
)

// TestLogLevel changes the log levels of a running control plane.
func TestLogLevel(t *testing.T) {
	m := clitest.StartMesh(t, group())
	if !strings.Contains(m.Log.String(), `msg="proxy connected" area=xds`) {
		t.Fatalf("the log does not tell its areas:\n%s", m.Log.String())
	}
	refuse := func(port int) string {
		m.Service(port)
		m.Next("refused it")
		m.Next("") // the replacement is sent after the log line
		return m.Log.String()
	}
	const line = "the proxy refused a response"
	if n := strings.Count(refuse(81), line); n != 1 {
		t.Errorf("%d lines at first", n)
	}
	m.Eventually(`(?m)^\S+ +ca +info\n(.*\n)*\S+ +xds +error$`, "log-level", "xds:error")
	if n := strings.Count(refuse(82), line); n != 1 {
		t.Errorf("%d lines, one more though its level is error", n)
	}
	m.Eventually(` xds +debug\n`, "log-level", "debug")
	if n := strings.Count(refuse(83), line); n != 2 {
		t.Errorf("%d lines, want 2 after the level went down", n)
	}
	if log := m.Log.String(); !strings.Contains(log, `msg="log levels changed" to=debug`) {
		t.Errorf("the change is not logged:\n%s", log)
	}
	var all []replicaLevels
	code, stdout, _ := m.Run("log-level", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &all); code != 0 || err != nil || len(all) != 1 || all[0].Levels["default"] != "debug" {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"log-level", "xdss:debug"}, 2, `unknown log area "xdss": the areas are default, authn, .*, did you mean "xds"\?`},
		{[]string{"log-level", "xds:loud"}, 2, `unknown log level "loud": the levels are debug, info, warn, error`},
		{[]string{"log-level", "xds:debug", "ca:debug"}, 2, `want levels in one argument`},
		{[]string{"log-level", "--server", "127.0.0.1:1"}, 4, `not read: 127\.0\.0\.1:1: .*connection refused`},
	} {
		code, stdout, stderr := m.Run(tc.args...)
		if code != tc.code || !regexp.MustCompile(tc.want).MatchString(stdout+stderr) {
			t.Errorf("%v: exit code %d, want %d and %s:\n%s%s", tc.args, code, tc.code, tc.want, stdout, stderr)
		}
	}
}

func TestCompleteLogLevels(t *testing.T) {
	for typed, want := range map[string]string{"": "xds:", "xds:debug,c": "xds:debug,ca:", "ca:info,xds:": "ca:info,xds:warn"} {
		if got, _ := completeLogLevels(nil, nil, typed); !slices.Contains(got, want) {
			t.Errorf("%q is completed with %v, want %s among them", typed, got, want)
		}
	}
}
