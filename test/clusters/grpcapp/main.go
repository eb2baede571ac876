// Command grpcapp is an application whose gRPC library is the xDS client. The name by which
// it is called selects a program:
//
//	grpc-server       answers gRPC requests at port 7070, with the credentials of xDS
//	grpc-call TARGET  sends a request and prints the answer; a target xds:///HOST:PORT uses xDS
//	sleep             sleeps
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "grpc-server":
		err = serve(ctx)
	case "grpc-call":
		err = call(ctx, os.Args[len(os.Args)-1])
	case "sleep":
		<-ctx.Done()
	default:
		err = fmt.Errorf("no program %s", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// echo answers with the name of the pod and the identity of the caller.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	caller := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			caller = info.State.PeerCertificates[0].URIs[0].String()
		}
	}
	return &testpb.SimpleResponse{ServerId: os.Getenv("HOSTNAME"), Username: caller}, nil
}

// serve answers until the context ends.
func serve(ctx context.Context) error {
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds))
	if err != nil {
		return err
	}
	testpb.RegisterTestServiceServer(server, echo{})
	listener, err := net.Listen("tcp", "0.0.0.0:7070")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, server.GracefulStop)
	return server.Serve(listener)
}

// call sends a request and prints the answer. Without xDS it uses plaintext.
func call(ctx context.Context, target string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	creds := insecure.NewCredentials()
	if strings.HasPrefix(target, "xds:") {
		var err error
		if creds, err = xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: creds}); err != nil {
			return err
		}
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	answer, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{})
	if err == nil {
		fmt.Printf("server: %s, caller: %s\n", answer.GetServerId(), answer.GetUsername())
	}
	return err
}
