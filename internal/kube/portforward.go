package kube

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/meshctl/meshctl/internal/dial"
)

const (
	// forwardTimeout bounds the start of a port-forward.
	forwardTimeout = 10 * time.Second
	// forwardProtocol is the protocol of the streams of a port-forward.
	forwardProtocol = "portforward.k8s.io"
	// maxForwardError bounds the error text of the kubelet, in bytes.
	maxForwardError = 1 << 10
	// proxyContainer is the name of the container of a sidecar.
	proxyContainer = "istio-proxy"
)

// PodPort is a port of a pod.
type PodPort struct {
	// Access is the access to the API server of the pod's cluster. It must not have
	// a Transport or Dial function of its own.
	Access          *rest.Config
	Namespace, Name string
	Port            uint16
}

func (t PodPort) String() string { return fmt.Sprintf("pod %s/%s", t.Namespace, t.Name) }

// WithoutSidecar says that the pod has no sidecar. It returns "" if the pod has one or cannot be read.
func (t PodPort) WithoutSidecar(ctx context.Context) string {
	api, err := NewClient(t.Access)
	if err != nil {
		return ""
	}
	defer api.Close()
	found, err := api.Pods(t.Namespace).Get(ctx, t.Name)
	isProxy := func(c corev1.Container) bool { return c.Name == proxyContainer }
	if err != nil || slices.ContainsFunc(found.Spec.Containers, isProxy) || slices.ContainsFunc(found.Spec.InitContainers, isProxy) {
		return ""
	}
	return fmt.Sprintf("%s has no sidecar: none of its containers is %s", t, proxyContainer)
}

// DialContext connects to the port through the API server, as kubectl port-forward
// does: over WebSocket, or over SPDY if the API server or a proxy refuses
// WebSocket. It ignores the network and the address. It can be the dialer of an
// HTTP client.
func (t PodPort) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	dialer, err := t.dialer(ctx)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	session, _, err := dialer.Dial(forwardProtocol)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	c := &podConn{session: session, done: make(chan struct{})}
	if err := c.open(t.Port); err != nil || !stop() {
		_ = session.Close()
		return nil, fmt.Errorf("port-forward: %w", cmp.Or(err, ctx.Err()))
	}
	return c, nil
}

// dialer returns a dialer whose requests end with ctx.
func (t PodPort) dialer(ctx context.Context) (httpstream.Dialer, error) {
	access := rest.CopyConfig(t.Access)
	access.Timeout = 0 // it would end the connection; ctx bounds the start
	access.Wrap(func(next http.RoundTripper) http.RoundTripper { return &endsWith{ctx, next} })
	base, _, err := rest.DefaultServerUrlFor(access)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("api", "v1", "namespaces", t.Namespace, "pods", t.Name, "portforward")
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, access)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(access)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, dial.HTTPClientOver(transport), http.MethodPost, target)
	return portforward.NewFallbackDialerForStreaming(websocket, overSPDY,
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) }), nil
}

// endsWith is a transport that ends each request with a context. The dialers of
// client-go take none.
type endsWith struct {
	ctx  context.Context
	next http.RoundTripper
}

func (t *endsWith) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.next.RoundTrip(r.WithContext(t.ctx))
}

// podConn is one connection to a port of a pod.
type podConn struct {
	session httpstream.Connection
	data    httpstream.Stream
	done    chan struct{} // closed when fault is known
	fault   error         // the error text of the kubelet; nil for none
}

// open makes the two streams of a connection, for errors and for data.
func (c *podConn) open(port uint16) error {
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	faults, err := c.session.CreateStream(header)
	if err != nil {
		return err
	}
	_ = faults.Close() // nothing is written to it
	header = header.Clone()
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	if c.data, err = c.session.CreateStream(header); err != nil {
		return err
	}
	go func() {
		defer close(c.done)
		// The stream may end with an error after the text.
		if text, _ := io.ReadAll(io.LimitReader(faults, maxForwardError)); len(text) > 0 {
			c.fault = fmt.Errorf("port-forward: %.300q", text)
			_ = c.session.Close()
		}
	}()
	return nil
}

func (c *podConn) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if err != nil && n == 0 {
		err = c.because(err)
	}
	return n, err
}

func (c *podConn) Write(b []byte) (int, error) {
	n, err := c.data.Write(b)
	if err != nil {
		err = c.because(err)
	}
	return n, err
}

// because returns the error of the kubelet if there is one, else err.
func (c *podConn) because(err error) error {
	<-c.done // closes with the session at the latest
	return cmp.Or(c.fault, err)
}

func (c *podConn) Close() error         { return c.session.Close() }
func (c *podConn) LocalAddr() net.Addr  { return podConnAddr{} }
func (c *podConn) RemoteAddr() net.Addr { return podConnAddr{} }

// The connection has no deadlines. Callers close it instead.
func (c *podConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *podConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *podConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type podConnAddr struct{}

func (podConnAddr) Network() string { return "port-forward" }
func (podConnAddr) String() string  { return "port-forward" }
