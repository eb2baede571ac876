// Package kube connects to ports of pods through the API server of their
// cluster, as kubectl port-forward does. No port is opened here for it.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// forwardTimeout bounds how long a port-forward takes to begin.
	forwardTimeout = 10 * time.Second
	// forwardProtocol is what streams of a port-forward speak.
	forwardProtocol = "portforward.k8s.io"
	// maxForwardError bounds what the other end says is wrong, in bytes.
	maxForwardError = 1 << 10
	// maxRefusal bounds what of an answer that is an error is read, in bytes.
	maxRefusal = 64 << 10
)

// PodPort is a port of a pod.
type PodPort struct {
	// Access is the way to the API server of the pod's cluster.
	Access          *rest.Config
	Namespace, Name string
	Port            uint16
}

func (t PodPort) String() string { return fmt.Sprintf("pod %s/%s", t.Namespace, t.Name) }

// DialContext makes a connection to the pod, whatever address it is asked for. The
// API server asks the kubelet for it. It can be the dialer of an HTTP client.
func (t PodPort) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	raw, err := t.upgrade(ctx)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	session, err := spdy.NewClientConnection(upgraded{raw})
	if err != nil {
		stop()
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	c := &podConn{session: session, done: make(chan struct{})}
	if err := c.open(t.Port); err != nil || !stop() {
		_ = session.Close()
		_ = raw.Close()
		return nil, fmt.Errorf("port-forward: %w", cmp.Or(err, ctx.Err()))
	}
	return c, nil
}

// upgrade asks the API server for the port-forward and returns the connection.
func (t PodPort) upgrade(ctx context.Context) (io.ReadWriteCloser, error) {
	access := rest.CopyConfig(t.Access)
	access.Timeout = 0                       // of the whole connection; ctx bounds its beginning
	access.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(access)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("api", "v1", "namespaces", t.Namespace, "pods", t.Name, "portforward")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header.Set(httpstream.HeaderProtocolVersion, forwardProtocol)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok ||
		!strings.EqualFold(resp.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31) {
		defer utilnet.CloseIdleConnectionsFor(client.Transport)
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return conn, nil
}

// refusal is what an API server says instead of a port-forward.
func refusal(resp *http.Response) error {
	var st metav1.Status
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err := json.Unmarshal(text, &st); err == nil && st.Kind == "Status" && st.Message != "" {
		return &apierrors.StatusError{ErrStatus: st}
	}
	return fmt.Errorf("the API server answered %s: %.200q", resp.Status, text)
}

// podConn is one connection to a port of a pod.
type podConn struct {
	session httpstream.Connection
	data    httpstream.Stream
	done    chan struct{} // closed when it is known how the connection went
	fault   error         // what the other end says; read after done
}

// open makes the two streams of a connection: what goes wrong with it comes on
// one of its own.
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
		// The session may end behind the text.
		if text, _ := io.ReadAll(io.LimitReader(faults, maxForwardError)); len(text) > 0 {
			c.fault = fmt.Errorf("port-forward: %.300q", text)
			_ = c.session.Close()
		}
	}()
	return nil
}

// Read implements net.Conn.
func (c *podConn) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if err != nil && n == 0 {
		err = c.because(err)
	}
	return n, err
}

// Write implements net.Conn.
func (c *podConn) Write(b []byte) (int, error) {
	n, err := c.data.Write(b)
	if err != nil {
		err = c.because(err)
	}
	return n, err
}

// because is what the other end says of an error, if it says anything.
func (c *podConn) because(err error) error {
	<-c.done // ends with the session at the latest
	return cmp.Or(c.fault, err)
}

// Close implements net.Conn.
func (c *podConn) Close() error { return c.session.Close() }

// LocalAddr implements net.Conn.
func (c *podConn) LocalAddr() net.Addr { return podConnAddr{} }

// RemoteAddr implements net.Conn.
func (c *podConn) RemoteAddr() net.Addr { return podConnAddr{} }

// SetDeadline implements net.Conn: who connects closes instead.
func (c *podConn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (c *podConn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (c *podConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type podConnAddr struct{}

func (podConnAddr) Network() string { return "port-forward" }
func (podConnAddr) String() string  { return "port-forward" }

// upgraded is what HTTP leaves of a connection, as a net.Conn.
type upgraded struct{ io.ReadWriteCloser }

// Close is nil also when the connection was closed before, which is no fault.
func (u upgraded) Close() error {
	_ = u.ReadWriteCloser.Close()
	return nil
}

func (upgraded) LocalAddr() net.Addr              { return podConnAddr{} }
func (upgraded) RemoteAddr() net.Addr             { return podConnAddr{} }
func (upgraded) SetDeadline(time.Time) error      { return nil }
func (upgraded) SetReadDeadline(time.Time) error  { return nil }
func (upgraded) SetWriteDeadline(time.Time) error { return nil }
