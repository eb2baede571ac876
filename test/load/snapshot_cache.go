package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	_ "github.com/meshctl/meshctl/internal/xdswire/protos" // the resources have messages of many kinds inside
)

// oneNode makes all proxies share one snapshot, the best case of a snapshot cache.
type oneNode struct{}

func (oneNode) ID(*corev3.Node) string { return "all" }

// serveYardstick serves the resources that saveResources wrote from a snapshot cache of
// go-control-plane.
func serveYardstick(ctx context.Context, addr, dir string) error {
	resources := make(map[string][]types.Resource)
	for i, typ := range xdsTypes {
		data, err := os.ReadFile(resourcesFile(dir, i))
		if err != nil {
			return err
		}
		var r discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(data, &r); err != nil {
			return err
		}
		for _, a := range r.GetResources() {
			m, err := a.UnmarshalNew()
			if err != nil {
				return err
			}
			resources[typ] = append(resources[typ], m)
		}
	}
	snapshot, err := cache.NewSnapshot("1", resources)
	if err != nil {
		return err
	}
	snapshots := cache.NewSnapshotCache(true, oneNode{}, nil)
	if err := snapshots.SetSnapshot(ctx, "all", snapshot); err != nil {
		return err
	}
	srv := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, serverv3.NewServer(ctx, snapshots, nil))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, srv.Stop)
	return srv.Serve(l)
}

func resourcesFile(dir string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("resources-%d.pb", i))
}

// saveResources writes the state-of-the-world resources that a server sends to a proxy.
func saveResources(ctx context.Context, addr, dir string) error {
	f := newFleet(addr, kind{sotw: true}, nil)
	f.keep = make(map[string][]byte)
	f.grow(ctx, 1)
	_, err := f.all(ctx, complete)
	f.close()
	for i, typ := range xdsTypes {
		err = errors.Join(err, os.WriteFile(resourcesFile(dir, i), f.keep[typ], 0o600))
	}
	return err
}
