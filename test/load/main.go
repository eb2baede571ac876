// Command load measures the control plane: it writes a mesh to a directory,
// starts the meshctl binary on it, connects simulated proxies, each on its own
// connection, and changes the mesh. Then a snapshot cache of go-control-plane, the
// yardstick, serves the same resources to the same proxies: ratios to it hold on any
// machine, figures do not. It measures CPU and memory of the server's process; the load
// runs in this process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// options are the flags.
type options struct {
	binary    string
	envoy     string
	proxies   int
	services  int
	endpoints int
	rounds    int
	returning int
	revision  string
	out       string
	yardstick bool
	others    bool
	kinds     string
	only      string
	hosts     bool
	profiles  string
}

func main() {
	var o options
	flag.StringVar(&o.binary, "meshctl", "bin/meshctl", "the `binary` to measure")
	flag.StringVar(&o.envoy, "envoy", ".cache/envoy/envoy", "the Envoy that an agent starts")
	flag.IntVar(&o.proxies, "proxies", 500, "simulated proxies")
	flag.IntVar(&o.services, "services", 1000, "Services in the mesh")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.IntVar(&o.rounds, "rounds", 5, "changes to take the median of")
	flag.IntVar(&o.returning, "returning", 1000, "proxies that come back after kill -9; 0 leaves that out")
	flag.StringVar(&o.kinds, "kinds", "sotw,delta,sotw tls,delta tls,sotw grpc,delta grpc", "how proxies connect, one run for each; grpc is with the gRPC library, as figures of other control planes were measured")
	flag.StringVar(&o.only, "only", "", "measure nothing but \"agent\", \"certificates\", \"kube\", \"policies\", \"authorization\", \"scale\" or a part of it, such as \"scale/Sidecars\"")
	flag.BoolVar(&o.hosts, "virtual-hosts", true, "delta proxies get virtual hosts one by one, as behind an agent; -kinds \"delta grpc\", -only policies and proxies that stop reading do not depend on it")
	flag.BoolVar(&o.yardstick, "yardstick", true, "also measure a snapshot cache of go-control-plane")
	flag.BoolVar(&o.others, "others", true, "also measure proxies that stop reading, the certificate authority, an agent, a mesh in a Kubernetes API (make kube), and large meshes")
	flag.StringVar(&o.revision, "revision", "unknown", "what is measured, for the report")
	flag.StringVar(&o.out, "out", "", "also write the figures as JSON to this `file`")
	flag.StringVar(&o.profiles, "profiles", "", "keep CPU and heap profiles of the server by phase in this `directory`; the server is then this command itself")
	before := flag.String("compare", "", "only compare the figures of -out with those of this `file`")
	// The command starts itself with these flags as the yardstick.
	serve := flag.String("serve-yardstick", "", "only serve the resources saved in this `directory`")
	addr := flag.String("addr", "", "where to serve them")
	profiled := flag.String("serve-profiled", "", "only be meshctl with the arguments that follow, with profiles in this `directory`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *serve != "":
		err = serveYardstick(ctx, *addr, *serve)
	case *profiled != "":
		err = serveProfiled(ctx, *profiled, os.Stdin, flag.Args())
	case *before != "":
		err = compare(os.Stdout, *before, o.out)
	default:
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "meshctl-load-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &benchmark{
		options: o, dir: dir, config: filepath.Join(dir, "config"), mesh: services{namespaces: 10, endpoints: o.endpoints},
		report: report{Revision: o.revision, Proxies: o.proxies, Services: o.services, Endpoints: o.endpoints},
	}
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o755); err != nil {
			return err
		}
	}
	if err := b.mesh.write(b.config, 0, o.services); err != nil {
		return err
	}
	err = b.all(ctx)
	fmt.Printf("%d proxies, %d Services with %d endpoints each, revision %s\n\n", o.proxies, o.services, o.endpoints, o.revision)
	if err := errors.Join(err, b.report.print(os.Stdout)); err != nil || o.out == "" {
		return err
	}
	return b.report.save(o.out)
}
