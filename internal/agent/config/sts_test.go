package config

import (
	"strings"
	"testing"
)

func TestSTS(t *testing.T) {
	if cfg := resolve(t, Flags{}); cfg.STS != nil {
		t.Errorf("an exchange without a port: %+v", cfg.STS)
	}
	cfg := resolve(t, Flags{}, "STS_PORT=15463", "STS_TOKEN_ENDPOINT=https://sts.test/token?a=b", "STS_ROOT_CA=r.pem")
	if s := cfg.STS; s.Addr.String() != "127.0.0.1:15463" || s.Endpoint.String() != "https://sts.test/token?a=b" || s.RootFile != "r.pem" || cfg.Metadata["STS_PORT"] != "15463" {
		t.Errorf("got %+v", s)
	}
	cfg = resolve(t, Flags{STSPort: 1, STSFile: "f", BindAddress: "127.77.0.1"}, "STS_TOKEN_FILE=e")
	if s := cfg.STS; s.Addr.String() != "127.77.0.1:1" || s.File != "f" {
		t.Errorf("got %+v", s)
	}
	for name, tc := range map[string]struct {
		flags Flags
		want  string
	}{
		"no port":       {Flags{STSEndpoint: "https://a"}, "--sts-port"},
		"port":          {Flags{STSPort: 70000, STSFile: "f"}, "--sts-port"},
		"no exchange":   {Flags{STSPort: 1}, "either --sts-endpoint"},
		"two exchanges": {Flags{STSPort: 1, STSFile: "f", STSEndpoint: "https://a"}, "either --sts-endpoint"},
		"clear text":    {Flags{STSPort: 1, STSEndpoint: "http://a/token"}, "want https"},
		"another":       {Flags{STSPort: 1, STSEndpoint: "ftp://a/token"}, "want https"},
		"no URL":        {Flags{STSPort: 1, STSEndpoint: "https://u:secret@a/"}, "is not a URL"},
		"no host":       {Flags{STSPort: 1, STSEndpoint: "/token"}, "is not a URL"},
		"the network":   {Flags{STSPort: 1, STSFile: "f", BindAddress: "10.0.0.1"}, "loopback"},
	} {
		_, _, err := Resolve(Input{Environ: base(), Flags: tc.flags})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
