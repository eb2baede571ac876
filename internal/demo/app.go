package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Headers that the application reads and writes.
const (
	headerXFCC  = "X-Forwarded-Client-Cert"
	contentType = "Content-Type"
)

// greeting is the response of helloworld.
type greeting struct {
	Version string `json:"version"`
	Pod     string `json:"pod"`
	Cluster string `json:"cluster"`
	// ClientCert is the header x-forwarded-client-cert of the pod's Envoy, which has the
	// identity of the client.
	ClientCert string `json:"x-forwarded-client-cert"`
}

// app is the application of one helloworld pod. It listens on a free loopback port, which
// only the configuration of its Envoy has.
type app struct {
	server *http.Server
	addr   string
	done   chan error
}

// startApp serves GET /hello for the helloworld of cluster c until close.
func startApp(c *cluster) (*app, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("application of the %s: %w", c.server.role, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(contentType, "application/json")
		// The client may have gone.
		_ = json.NewEncoder(w).Encode(greeting{
			Version:    c.version,
			Pod:        c.server.workload,
			Cluster:    string(c.id),
			ClientCert: strings.Join(r.Header.Values(headerXFCC), ","),
		})
	})
	a := &app{
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute},
		addr:   l.Addr().String(),
		done:   make(chan error, 1),
	}
	go func() { a.done <- a.server.Serve(l) }()
	return a, nil
}

// close ends the application and waits for it.
func (a *app) close() error {
	err := a.server.Close()
	if serveErr := <-a.done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// maxGreeting bounds a response, in bytes.
const maxGreeting = 64 << 10

func readGreeting(r io.Reader) (greeting, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxGreeting+1))
	if err != nil {
		return greeting{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > maxGreeting {
		return greeting{}, fmt.Errorf("the answer is longer than %d bytes", maxGreeting)
	}
	var g greeting
	if err := json.Unmarshal(data, &g); err != nil {
		return greeting{}, fmt.Errorf("the answer is not helloworld's: %w", err)
	}
	return g, nil
}
