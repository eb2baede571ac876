package agent

import (
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/sts"
	"github.com/meshctl/meshctl/internal/dial"
)

// TestTokenExchange: an agent with a port for it exchanges tokens.
func TestTokenExchange(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	a.cfg.STS = &config.STS{Addr: netip.AddrPortFrom(a.cfg.Local, 15463), File: filepath.Join(t.TempDir(), "token")}
	check(t, os.WriteFile(a.cfg.STS.File, []byte("other"), 0o600))
	a.start(t)
	a.waitReady(t)
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.PostForm("http://"+a.cfg.STS.Addr.String()+sts.Path,
		url.Values{"grant_type": {sts.GrantType}, "subject_token_type": {sts.JWTType}, "subject_token": {"own"}})
	check(t, err)
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	check(t, resp.Body.Close())
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"access_token":"other"`) {
		t.Errorf("%s: %s", resp.Status, body)
	}
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
}
