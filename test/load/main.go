// Command load measures the control plane: it writes a mesh to a directory,
// starts the meshctl binary on it, connects simulated proxies, each on its own
// connection, and changes endpoints. CPU and memory are those of the server's
// process; the load itself runs in this one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// options are the flags.
type options struct {
	binary    string
	proxies   int
	services  int
	endpoints int
	rounds    int
	sotw      bool
	out       string
}

// results are the figures of one run. Times are seconds, sizes bytes.
type results struct {
	Proxies          int     `json:"proxies"`
	Services         int     `json:"services"`
	Endpoints        int     `json:"endpoints"`
	Variant          string  `json:"variant"`
	StartToReady     float64 `json:"startToReadySeconds"`
	IdleRSS          int64   `json:"idleRSSBytes"`
	ConnectSeconds   float64 `json:"connectSeconds"`
	ConnectCPU       float64 `json:"connectCPUSeconds"`
	BytesSent        int64   `json:"bytesSent"`
	CPUPerProxy      float64 `json:"cpuPerProxySeconds"`
	RSSPerProxy      float64 `json:"rssPerProxyBytes"`
	ChangeP50        float64 `json:"changeP50Seconds"`
	ChangeLast       float64 `json:"changeLastSeconds"`
	ChangeCPU        float64 `json:"changeCPUSeconds"`
	ChangeGenerated  float64 `json:"changeGenerated"`
	ChangeFramesSent float64 `json:"changeFramesSent"`
}

func main() {
	var o options
	flag.StringVar(&o.binary, "meshctl", "bin/meshctl", "the `binary` to measure")
	flag.IntVar(&o.proxies, "proxies", 200, "simulated proxies")
	flag.IntVar(&o.services, "services", 1000, "Services in the mesh")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.IntVar(&o.rounds, "rounds", 5, "changes to take the median of")
	flag.BoolVar(&o.sotw, "sotw", false, "state of the world instead of delta")
	flag.StringVar(&o.out, "out", "", "also write the figures as JSON to this `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// deadline bounds the whole run.
const deadline = 10 * time.Minute

func run(ctx context.Context, o options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	dir, err := os.MkdirTemp("", "meshctl-load-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "config")
	if err := writeMesh(config, o.services, o.endpoints); err != nil {
		return err
	}
	srv, err := startServer(ctx, o.binary, dir, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()

	r := results{Proxies: o.proxies, Services: o.services, Endpoints: o.endpoints, Variant: "delta", StartToReady: srv.ready.Seconds()}
	if o.sotw {
		r.Variant = "state of the world"
	}
	if err := measure(ctx, o, srv, config, &r); err != nil {
		return fmt.Errorf("%w\n%s", err, srv.log.String())
	}
	r.print(os.Stdout)
	if o.out == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(b, '\n'), 0o644)
}

func measure(ctx context.Context, o options, srv *server, config string, r *results) error {
	// One proxy first: the views that all share are made for it, and its cost
	// is not a proxy's.
	warm, err := connect(ctx, srv.xds, 0, o.sotw)
	if err != nil {
		return err
	}
	defer warm.close()
	if err := warm.complete(ctx, o.services); err != nil {
		return err
	}
	before, err := srv.usage()
	if err != nil {
		return err
	}
	r.IdleRSS = before.rss

	start := time.Now()
	proxies := make([]*proxy, o.proxies)
	g, gctx := errgroup.WithContext(ctx)
	for i := range proxies {
		g.Go(func() error {
			p, err := connect(ctx, srv.xds, i+1, o.sotw)
			if err != nil {
				return err
			}
			proxies[i] = p
			return p.complete(gctx, o.services)
		})
	}
	err = g.Wait()
	for _, p := range proxies {
		if p != nil {
			defer p.close()
		}
	}
	if err != nil {
		return err
	}
	r.ConnectSeconds = time.Since(start).Seconds()
	after, err := srv.usage()
	if err != nil {
		return err
	}
	for _, p := range proxies {
		r.BytesSent += p.bytes.Load()
	}
	r.ConnectCPU = after.cpu - before.cpu
	r.CPUPerProxy = r.ConnectCPU / float64(o.proxies)
	r.RSSPerProxy = float64(after.rss-before.rss) / float64(o.proxies)
	return changes(ctx, o, srv, config, proxies, r)
}

// changes moves one endpoint of one service at a time and waits until every
// proxy has it.
func changes(ctx context.Context, o options, srv *server, config string, proxies []*proxy, r *results) error {
	var p50, last, cpu, generated, frames []float64
	for round := range o.rounds {
		before, err := srv.usage()
		if err != nil {
			return err
		}
		for _, p := range proxies {
			p.expect()
		}
		start := time.Now()
		if err := writeSlice(config, round, o.endpoints, round+1); err != nil {
			return err
		}
		took := make([]float64, len(proxies))
		for i, p := range proxies {
			at, err := p.changed(ctx)
			if err != nil {
				return fmt.Errorf("change %d, proxy %d: %w", round, i, err)
			}
			took[i] = at.Sub(start).Seconds()
		}
		after, err := srv.usage()
		if err != nil {
			return err
		}
		slices.Sort(took)
		p50 = append(p50, took[len(took)/2])
		last = append(last, took[len(took)-1])
		cpu = append(cpu, after.cpu-before.cpu)
		generated = append(generated, after.generated-before.generated)
		frames = append(frames, after.sent-before.sent)
	}
	r.ChangeP50, r.ChangeLast, r.ChangeCPU = median(p50), median(last), median(cpu)
	r.ChangeGenerated, r.ChangeFramesSent = median(generated), median(frames)
	return nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
