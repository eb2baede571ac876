package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/config"
)

// TestWaitForPatches: the wait for patches that do not come ends with an error, or with the
// agent.
func TestWaitForPatches(t *testing.T) {
	calling := make(chan struct{}, 1)
	never := func(ctx context.Context, _ func(context.Context, grpc.ClientConnInterface) error) error {
		calling <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	for name, tc := range map[string]struct {
		timeout time.Duration
		end     func(stop, fail, quit func())
		want    error
	}{
		"too long":      {time.Nanosecond, func(_, _, _ func()) {}, errNoPatches},
		"agent stops":   {time.Hour, func(stop, _, _ func()) { stop() }, nil},
		"server failed": {time.Hour, func(_, fail, _ func()) { fail() }, errServing},
		"asked to end":  {time.Hour, func(_, _, quit func()) { quit() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newBootstrapPatches(&config.Config{PatchesBootstrap: true}, Options{
				Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
			})
			p.timeout = tc.timeout
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			serving, fail := context.WithCancel(t.Context())
			defer fail()
			quit := make(chan struct{})
			go func() {
				<-calling
				tc.end(stop, fail, func() { close(quit) })
			}()
			if _, ok, err := p.wait(ctx, serving, quit, never); ok || !errors.Is(err, tc.want) {
				t.Errorf("patches: %v, error %v, want %v", ok, err, tc.want)
			}
		})
	}
}

// TestChangedPatches: patches that differ from the first ones are reported, once they arrive, and
// invalid ones are refused.
func TestChangedPatches(t *testing.T) {
	var log bytes.Buffer
	cfg := config.Config{PatchesBootstrap: true}
	cfg.SDSSocket, cfg.XDSSocket, cfg.Listen, cfg.Local = "sds", "XDS", netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1")
	p := newBootstrapPatches(&cfg, Options{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
	})
	first, changed, invalid := []byte(nil), []byte("\x32\x02\x08\x07"), []byte("\x0a\x00") // stats_flush_interval of 7s, a node
	for _, step := range []struct {
		patch    []byte
		refused  bool
		reported bool
	}{
		{first, false, false}, {first, false, false}, {invalid, true, false}, {changed, false, true},
	} {
		log.Reset()
		if err := p.take(step.patch); (err != nil) != step.refused {
			t.Errorf("%q: error %v", step.patch, err)
		}
		if reported := strings.Contains(log.String(), "they apply when the proxy starts again"); reported != step.reported {
			t.Errorf("%q: logged %q", step.patch, log.String())
		}
	}
}
