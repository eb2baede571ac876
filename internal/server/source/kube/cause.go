package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/meshctl/meshctl/internal/server/source"
)

// Cause is the reason, in one word, why a resource is not followed.
type Cause string

// The causes.
const (
	CauseName         Cause = "name"         // the host name cannot be resolved
	CauseTCP          Cause = "tcp"          // no connection, or a broken one
	CauseTLS          Cause = "tls"          // a certificate is not trusted
	CauseUnauthorized Cause = "401"          // the credential is refused
	CauseForbidden    Cause = "403"          // the credential lacks a right
	CauseTimeout      Cause = "timeout"      // no complete response in time
	CauseServer       Cause = "server"       // another error response
	CauseAnswer       Cause = "answer"       // the response is not from a Kubernetes API
	CauseLimit        Cause = "limit"        // a limit is exceeded
	CauseOther        Cause = "other"        // none of these
	CauseNotInstalled Cause = "notInstalled" // the API does not have the resource, which is no error
)

// errTimeout reports a request that was cancelled at its deadline.
var errTimeout = errors.New("the API server did not answer in time")

// explain returns the cause and the text of a failed request for the resource.
func explain(err error, verb string, r *source.Resource) (Cause, string) {
	if status, ok := errors.AsType[*statusError](err); ok {
		switch status.code {
		case http.StatusUnauthorized:
			return CauseUnauthorized, "the API server refuses the credential: " + status.Error()
		case http.StatusForbidden:
			return CauseForbidden, "may not " + verb + " " + r.GroupResource() + " (" + r.Without + "): " + status.Error()
		}
		return CauseServer, verb + " " + r.GroupResource() + ": " + status.Error()
	}
	text := shorten(err.Error())
	if _, ok := errors.AsType[*answerError](err); ok {
		return CauseAnswer, verb + " " + r.GroupResource() + ": " + text
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return CauseName, "name: " + text
	}
	var timeout net.Error
	switch {
	case errors.Is(err, errLimit):
		return CauseLimit, text
	case isTLS(err):
		return CauseTLS, "TLS: " + text
	case isLost(err):
		return CauseTimeout, "timeout: the API server is silent, its connection is given up"
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return CauseTimeout, "timeout: " + text
	case isTCP(err):
		return CauseTCP, "TCP: " + text
	}
	return CauseOther, text
}

func isTLS(err error) bool {
	var (
		unknown  x509.UnknownAuthorityError
		host     x509.HostnameError
		invalid  x509.CertificateInvalidError
		verify   *tls.CertificateVerificationError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		remote   *net.OpError
		fromPeer = errors.As(err, &remote) && remote.Op == "remote error" // an alert of the peer
	)
	return fromPeer || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid) ||
		errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &alert)
}

// isLost reports whether the server did not answer an HTTP/2 ping.
func isLost(err error) bool { return strings.HasSuffix(err.Error(), "http2: client connection lost") }

func isTCP(err error) bool {
	var op *net.OpError
	var number syscall.Errno
	return strings.HasPrefix(err.Error(), "http2: ") || // the server closed the connection
		errors.As(err, &op) || errors.As(err, &number) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
