package replicas

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/xdswire"
)

var at = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// istiod is a control plane of Istio: it returns text for unknown pages, and syncz in
// Istio's messages.
type istiod struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	refuse error // pages
	old    bool
}

func (i *istiod) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); strings.Join(md.Get("authorization"), "") != "Bearer t" {
		return status.Error(codes.Unauthenticated, "authentication failure")
	}
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	if r.GetNode().GetId() != nodeID || r.GetNode().GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "event" {
		return status.Error(codes.InvalidArgument, "no such node")
	}
	answer := &discoveryv3.DiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: `{"Component":"istiod","ID":"istiod-7","Info":{}}`}}
	switch {
	case r.GetTypeUrl() == "istio.io/debug/syncz":
		answer.Resources = clientConfigs(i.old)
	case i.refuse != nil:
		return i.refuse
	case len(r.GetResourceNames()) == 1 && r.GetResourceNames()[0] == "edsz?proxyID=web.apps":
		answer.Resources = []*anypb.Any{{TypeUrl: xdswire.DebugType, Value: []byte("[]")}}
	default:
		answer.Resources = []*anypb.Any{{TypeUrl: xdswire.DebugType, Value: []byte("404 page not found\n")}}
	}
	return stream.Send(answer)
}

func clientConfigs(old bool) []*anypb.Any {
	md, _ := structpb.NewStruct(map[string]any{"CLUSTER_ID": "c1", "NAMESPACE": "apps", "ISTIO_VERSION": "1.29.0"})
	c := &statusv3.ClientConfig{Node: &corev3.Node{Id: "web.apps", Metadata: md}}
	if old {
		c.XdsConfig = []*statusv3.PerXdsConfig{ //nolint:staticcheck // older control planes send it
			{Status: statusv3.ConfigStatus_SYNCED, PerXdsConfig: &statusv3.PerXdsConfig_ClusterConfig{}},
			{Status: statusv3.ConfigStatus_NOT_SENT, PerXdsConfig: &statusv3.PerXdsConfig_RouteConfig{}},
			{Status: statusv3.ConfigStatus_UNKNOWN, PerXdsConfig: &statusv3.PerXdsConfig_EndpointConfig{}},
		}
	} else {
		minuteAgo := timestamppb.New(at.Add(-time.Minute))
		c.GenericXdsConfigs = []*statusv3.ClientConfig_GenericXdsConfig{
			{TypeUrl: xdswire.ClusterType, ConfigStatus: statusv3.ConfigStatus_SYNCED, LastUpdated: minuteAgo},
			{TypeUrl: xdswire.EndpointType, ConfigStatus: statusv3.ConfigStatus_STALE, LastUpdated: minuteAgo},
			{TypeUrl: xdswire.ListenerType, ConfigStatus: statusv3.ConfigStatus_ERROR, ErrorState: &adminv3.UpdateFailureState{Details: "no filter chains"}},
			{TypeUrl: xdswire.RouteType, ConfigStatus: statusv3.ConfigStatus_NOT_SENT},
			{TypeUrl: xdswire.SecretType, ConfigStatus: statusv3.ConfigStatus_UNKNOWN},
		}
	}
	a, _ := anypb.New(c)
	return []*anypb.Any{a}
}

// serve runs a control plane and returns a client for it.
func serve(t *testing.T, i *istiod, change func(*XDSConfig)) *XDSClient {
	t.Helper()
	root := certstest.NewRoot(t)
	key, err := certs.GenerateKey(certs.ECDSAP256)
	check(t, err)
	leaf, err := root.SignServer(key.Public(), []string{"istiod.istio-system.svc"}, time.Hour, time.Now(), rand.Reader)
	check(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
	})))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, i)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		check(t, <-done)
	})
	config, err := dial.TLSConfig(certs.EncodeCerts(root.Cert), "istiod.istio-system.svc")
	check(t, err)
	cfg := XDSConfig{Address: listener.Addr().String(), TLS: config, Token: "t", Timeout: 30 * time.Second, Now: func() time.Time { return at }}
	if change != nil {
		change(&cfg)
	}
	client, err := NewXDS(cfg)
	check(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestIstio: syncz serves when the control plane knows only Istio's pages.
func TestIstio(t *testing.T) {
	t.Parallel()
	typed := func(url string, s proxystatus.State) proxystatus.Type {
		return proxystatus.Type{Type: xdswire.ShortType(url), URL: url, State: s}
	}
	stale, synced, wrong := typed(xdswire.EndpointType, proxystatus.Stale), typed(xdswire.ClusterType, proxystatus.Synced), typed(xdswire.ListenerType, proxystatus.Error)
	stale.SentAt, synced.SentAt, stale.Lag, wrong.Error = at.Add(-time.Minute), at.Add(-time.Minute), proxystatus.Lag(time.Minute), "no filter chains"
	proxy := proxystatus.Proxy{Name: "web.apps", Namespace: "apps", Cluster: "c1", Version: "1.29.0"}
	for name, tc := range map[string]struct {
		istiod istiod
		want   []proxystatus.Type
	}{
		"now":                       {istiod{}, []proxystatus.Type{synced, stale, wrong, typed(xdswire.RouteType, proxystatus.NotSent)}},
		"before":                    {istiod{old: true}, []proxystatus.Type{typed(xdswire.ClusterType, proxystatus.Synced), typed(xdswire.RouteType, proxystatus.NotSent)}},
		"the page is not for these": {istiod{old: true, refuse: status.Error(codes.PermissionDenied, "no")}, []proxystatus.Type{typed(xdswire.ClusterType, proxystatus.Synced), typed(xdswire.RouteType, proxystatus.NotSent)}},
	} {
		c := serve(t, &tc.istiod, nil)
		got, err := c.Proxies(t.Context())
		check(t, err)
		want := proxy
		want.Types = tc.want
		if diff := cmp.Diff(&proxystatus.Report{Replica: "istiod-7", At: at, Proxies: []proxystatus.Proxy{want}}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	page, err := serve(t, &istiod{}, nil).Page(t.Context(), "edsz?proxyID=web.apps")
	if err != nil || string(page) != "[]" {
		t.Errorf("%q, %v", page, err)
	}
}

// TestRefused: errors explain missing credentials and untrusted control planes.
func TestRefused(t *testing.T) {
	t.Parallel()
	other := certs.EncodeCerts(certstest.NewRoot(t).Cert)
	for name, tc := range map[string]struct {
		change    func(*XDSConfig)
		want      string
		untrusted bool
	}{
		"no token":     {func(c *XDSConfig) { c.Token = "" }, "authentication failure; it wants the token or the certificate of an identity of the mesh", false},
		"another root": {func(c *XDSConfig) { c.TLS.RootCAs = x509.NewCertPool(); c.TLS.RootCAs.AppendCertsFromPEM(other) }, "signed by unknown authority", true},
		"another name": {func(c *XDSConfig) { c.TLS.ServerName = "example.com" }, "not example.com", true},
		"nobody there": {func(c *XDSConfig) { c.Address = "127.0.0.1:1" }, "connection refused", false},
		"no time":      {func(c *XDSConfig) { c.Timeout = 1 }, "no answer in time", false},
	} {
		_, err := serve(t, &istiod{}, tc.change).Proxies(t.Context())
		told, ok := errors.AsType[*XDSError](err)
		if !ok || !strings.Contains(err.Error(), tc.want) || told.Untrusted() != tc.untrusted || strings.Contains(err.Error(), "desc =") && !tc.untrusted && name != "nobody there" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewXDS(XDSConfig{Address: "istiod"}); err == nil || !strings.Contains(err.Error(), "want host:port") {
		t.Errorf("an address without a port: %v", err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzReport: no response to syncz makes reportOf fail in another way than by an error.
func FuzzReport(f *testing.F) {
	for _, old := range []bool{false, true} {
		f.Add(clientConfigs(old)[0].GetValue(), `{"ID":"a"}`)
	}
	f.Add([]byte{0x0a}, `{"ID":1}`)
	f.Fuzz(func(t *testing.T, value []byte, identifier string) {
		r, err := reportOf(&discoveryv3.DiscoveryResponse{
			ControlPlane: &corev3.ControlPlane{Identifier: identifier},
			Resources:    []*anypb.Any{{TypeUrl: "type.googleapis.com/envoy.service.status.v3.ClientConfig", Value: value}},
		}, at)
		if err != nil {
			return
		}
		r.Sort()
		for _, p := range r.Proxies {
			for _, x := range p.Types {
				if x.State == "" || x.Type == "" && x.URL != "" && !strings.ContainsAny(x.URL[len(x.URL)-1:], "/.") || x.Lag < 0 {
					t.Errorf("%+v", x)
				}
			}
		}
		for _, table := range []func([]proxystatus.Report) int{
			func(r []proxystatus.Report) int { return len(proxystatus.Table(r).Rows) },
			func(r []proxystatus.Report) int { return len(proxystatus.WideTable(r).Rows) },
		} {
			if n := table([]proxystatus.Report{*r}); n != 1 {
				t.Errorf("%d rows", n)
			}
		}
	})
}
