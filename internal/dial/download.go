package dial

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"time"
)

// DownloadTransport returns a transport for files on servers that others choose. It connects
// through the guard, and a body longer than limit bytes is an error. TLS 1.2 suffices. Clients
// with this transport follow up to 10 redirects, because registries keep their files elsewhere,
// but none from https to http.
func (g Guard) DownloadTransport(limit int64) http.RoundTripper {
	t := newTransport(&tls.Config{MinVersion: tls.VersionTLS12})
	t.DialContext = g.DialContext
	t.ForceAttemptHTTP2 = true
	return &download{&bounded{next: t, limit: limit, redirects: true}}
}

type download struct{ next http.RoundTripper }

func (d *download) RoundTrip(req *http.Request) (*http.Response, error) {
	if from := req.Response; from != nil && from.Request.URL.Scheme == "https" && req.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s redirects to %s without TLS, which is not followed", from.Request.URL.Host, req.URL.Host)
	}
	return d.next.RoundTrip(req)
}

// DownloadClient returns a client over a transport made of DownloadTransports. Its requests,
// including the body, end within timeout.
func DownloadClient(timeout time.Duration, transport http.RoundTripper) *http.Client {
	return &http.Client{Timeout: timeout, Transport: transport}
}
