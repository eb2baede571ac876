// Package doctor finds out why a workload gets no certificate, or its proxy does not start. It
// makes one check after the other, each of which needs the earlier ones, and ends at the first
// that fails: one cause, with its fix.
package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/meshctl/meshctl/internal/token"
)

// Config is the workload to examine. Empty fields of checks skip them.
type Config struct {
	// Directories checks the directories and sockets of the agent, for the check "directories".
	Directories func() error
	// Ports are the ports of the proxy and its agent.
	Ports []Port

	// TokenFile proves that the workload is ServiceAccount in Namespace. Control planes expect
	// Audience by default.
	TokenFile                 string
	Namespace, ServiceAccount string
	Audience                  string

	// Files checks the files that hold the certificate.
	Files func() error

	// RootFile holds the roots that sign the certificate of the control plane at Addr,
	// host:port, which must be for ServerName.
	RootFile, Addr, ServerName string

	// Sign requests a certificate, and throws it away.
	Sign func(context.Context) error
	// Bootstrap checks Envoy and its bootstrap.
	Bootstrap func(context.Context) error

	Now func() time.Time
}

// Finding is the result of a check.
type Finding struct {
	Check string `json:"check"`
	// Detail describes the finding. Without a problem, Cause and Fix are empty.
	Detail string `json:"detail,omitzero"`
	Cause  string `json:"cause,omitzero"`
	Fix    string `json:"fix,omitzero"`
}

// problem is an error with its fix.
type problem struct{ cause, fix string }

func (p *problem) Error() string { return p.cause + "; " + p.fix }

// checkTimeout bounds one check.
const checkTimeout = 15 * time.Second

// Examine makes the checks up to the first that fails. Only the last finding has a cause.
func (c *Config) Examine(ctx context.Context) []Finding {
	var (
		roots []*x509.Certificate
		held  token.Unverified
	)
	checks := []struct {
		name string
		skip bool
		run  func(context.Context) (string, error)
	}{
		{"directories", c.Directories == nil, func(context.Context) (string, error) { return "", c.Directories() }},
		{"ports", len(c.Ports) == 0, c.ports},
		{"bootstrap", c.Bootstrap == nil, func(ctx context.Context) (string, error) { return "", c.Bootstrap(ctx) }},
		{"token", c.TokenFile == "", func(context.Context) (detail string, err error) {
			detail, held, err = c.token()
			return detail, err
		}},
		{"files", c.Files == nil, func(context.Context) (string, error) { return "", c.Files() }},
		{"roots", c.RootFile == "", func(context.Context) (detail string, err error) {
			detail, roots, err = c.roots()
			return detail, err
		}},
		{"DNS", c.Addr == "", c.resolve},
		{"TCP", c.Addr == "", c.connect},
		{"TLS", c.Addr == "" || c.RootFile == "", func(ctx context.Context) (string, error) { return c.handshake(ctx, roots) }},
		{"certificate", c.Sign == nil, func(ctx context.Context) (string, error) { return c.sign(ctx, held.Audiences) }},
	}
	var out []Finding
	for _, check := range checks {
		if check.skip {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		detail, err := check.run(ctx)
		cancel()
		f := Finding{Check: check.name, Detail: detail}
		if err != nil {
			f.Cause = err.Error()
			if p, ok := errors.AsType[*problem](err); ok {
				f.Cause, f.Fix = p.cause, p.fix
			}
		}
		if out = append(out, f); err != nil {
			break
		}
	}
	return out
}
