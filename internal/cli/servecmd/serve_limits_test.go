package servecmd

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// TestLimitFlags sets flags one at a time: each changes its limit and no other.
func TestLimitFlags(t *testing.T) {
	for flag, tt := range map[string]struct {
		value string
		set   func(*xds.Limits)
	}{
		"max-connections-per-address":  {"7", func(l *xds.Limits) { l.AddressConns = 7 }},
		"max-connections-per-identity": {"7", func(l *xds.Limits) { l.IdentityConns = 7 }},
		"max-pending-connections":      {"7", func(l *xds.Limits) { l.PendingConns = 7 }},
		"max-streams-per-connection":   {"7", func(l *xds.Limits) { l.ConnStreams = 7 }},
		"max-streams-per-identity":     {"7", func(l *xds.Limits) { l.IdentityStreams = 7 }},
		"max-streams-per-address":      {"7", func(l *xds.Limits) { l.AddressStreams = 7 }},
		"max-starting-streams":         {"7", func(l *xds.Limits) { l.Starting = 7 }},
		"max-names":                    {"7", func(l *xds.Limits) { l.Names = 7 }},
		"max-name-bytes":               {"7", func(l *xds.Limits) { l.NameBytes = 7 }},
		"max-held-bytes-per-identity":  {"7", func(l *xds.Limits) { l.PeerBytes = 7 }},
		"max-held-bytes":               {"7", func(l *xds.Limits) { l.TotalBytes = 7 }},
		"max-request-bytes":            {"7", func(l *xds.Limits) { l.RequestBytes = 7 }},
		"max-metadata-bytes":           {"7", func(l *xds.Limits) { l.MetadataBytes = 7 }},
		"max-metadata-depth":           {"7", func(l *xds.Limits) { l.MetadataDepth = 7 }},
		"max-header-bytes":             {"7", func(l *xds.Limits) { l.Headers = 7 }},
		"max-connection-age":           {"7s", func(l *xds.Limits) { l.ConnectionAge = 7 * time.Second }},
		"handshake-timeout":            {"7s", func(l *xds.Limits) { l.Handshake = 7 * time.Second }},
		"first-request-timeout":        {"7s", func(l *xds.Limits) { l.FirstRequest = 7 * time.Second }},
		"request-timeout":              {"7s", func(l *xds.Limits) { l.RequestTime = 7 * time.Second }},
		"write-timeout":                {"7s", func(l *xds.Limits) { l.Write = 7 * time.Second }},
		"min-ping-interval":            {"7s", func(l *xds.Limits) { l.Ping = 7 * time.Second }},
		"memory-wait":                  {"7s", func(l *xds.Limits) { l.MemoryWait = 7 * time.Second }},
	} {
		parse := func(value string) (xds.Limits, error) {
			var cfg server.Config
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			bindLimits(f, &cfg)
			if err := f.Parse([]string{"--" + flag, value}); err != nil {
				return cfg.Limits, err
			}
			err := checkLimits(&cfg)
			return cfg.Limits, err
		}
		want := xds.DefaultLimits()
		tt.set(&want)
		got, err := parse(tt.value)
		if err != nil {
			t.Errorf("--%s %s: %v", flag, tt.value, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("--%s %s (-want +got):\n%s", flag, tt.value, d)
		}
		if _, err := parse("0"); (err == nil) != (flag == "max-connection-age") { // 0 for no limit
			t.Errorf("--%s 0: got %v", flag, err)
		}
	}
}
