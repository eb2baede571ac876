package workloadcert

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/backoff"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Bounds of waiting.
const (
	attemptTimeout = 10 * time.Second
	minRetry       = 200 * time.Millisecond
	maxRetry       = 30 * time.Second
	minRenewal     = time.Second      // between two certificates, even with a wrong clock
	logAgain       = 30 * time.Second // between equal errors
	clockInterval  = time.Second      // between two looks at the clock of the machine
)

// Signer signs certificate requests. Client implements it.
type Signer interface {
	Sign(ctx context.Context, csr []byte, ttl time.Duration, current Current) (Response, error)
}

// Config of a Manager. All fields are needed, except Files, Provider and Provisioned.
type Config struct {
	// Files, if set, hold the certificate, and the manager requests none.
	Files *Files
	// Provider, if set, has the certificate, and the manager requests none.
	Provider Provider
	// Provisioned, if set, hold a certificate that proves the identity in requests until there
	// is another.
	Provisioned *Files

	Identity mesh.Identity
	Signer   Signer
	// TTL is the requested lifetime.
	TTL time.Duration
	// Grace is the share of the lifetime, 0 to 1, that is left at renewal, plus or minus up
	// to Jitter.
	Grace, Jitter float64
	// Publish is called with each new certificate.
	Publish func(context.Context, *Certificate) error
	Log     *slog.Logger
	Now     func() time.Time
	Rand    *rand.Rand
}

// Manager gets and renews one certificate.
type Manager struct {
	cfg   Config
	again chan struct{} // capacity 1: renew now
	// obtained is closed with the first certificate, and failed when the first request fails.
	obtained, failed chan struct{}

	mu      sync.Mutex
	status  Status
	revoked *x509.Certificate // must not be used
}

// Status is the state of a Manager.
type Status struct {
	// Certificate is nil until there is one.
	Certificate *Certificate
	// Err is the error of the last request, or nil.
	Err error
	// Requests, Retries and Failures count the requests to the authority since the start: all, the
	// repetitions of failed ones, and the failed ones. FileFailures counts failed uses of files.
	Requests, Retries, Failures, FileFailures uint64
	// Waited is the total duration of the requests.
	Waited time.Duration
}

// NewManager returns a manager that does nothing before Run.
func NewManager(cfg Config) *Manager {
	return &Manager{cfg: cfg, again: make(chan struct{}, 1), obtained: make(chan struct{}), failed: make(chan struct{})}
}

// Obtained returns a channel that is closed when there is a certificate.
func (m *Manager) Obtained() <-chan struct{} { return m.obtained }

// Failed returns a channel that is closed if the first request fails.
func (m *Manager) Failed() <-chan struct{} { return m.failed }

// Status returns the state. It may be called at any time.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// Current returns the certificate and roots for connections now.
func (m *Manager) Current() Current {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usable(m.status.Certificate)
}

// Usable returns the parts of a certificate, which may be nil, that can be used for connections now.
func (m *Manager) Usable(cert *Certificate) Current {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usable(cert)
}

// usable returns the parts of cert that can be used now. The lock must be held.
func (m *Manager) usable(cert *Certificate) Current {
	if cert == nil {
		return Current{}
	}
	c := Current{Roots: cert.roots}
	if cert.chain[0] != m.revoked && m.cfg.Now().Before(cert.NotAfter()) {
		c.Certificate = cert.client()
	}
	return c
}

// Revoked reports that the certificate in use, which begins with leaf, was revoked. The
// manager gets another one at once, with the token.
func (m *Manager) Revoked(leaf *x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.revoked == leaf {
		return
	}
	m.revoked = leaf
	m.cfg.Log.Error("the certificate in use is revoked, getting another one with the token", "serial", leaf.SerialNumber.Text(16))
	select {
	case m.again <- struct{}{}:
	default:
	}
}

// Run gets a certificate and renews it until ctx ends. It logs failures, keeps the last one
// in the status, and never gives up.
func (m *Manager) Run(ctx context.Context) {
	switch {
	case m.cfg.Files != nil:
		m.follow(ctx)
		return
	case m.cfg.Provider != nil:
		m.followProvider(ctx)
		return
	}
	var (
		current  *Certificate
		failures int
		loggedAt time.Time
		logged   string
	)
	for {
		next, err := m.renew(ctx, current, failures)
		if ctx.Err() != nil {
			return
		}
		wait, floor := time.Duration(0), time.Duration(0)
		if err == nil {
			current, floor = next, minRenewal
			if wait, err = m.renewIn(next); err == nil {
				failures = 0
				m.cfg.Log.Info("got a certificate", "identity", m.cfg.Identity.String(),
					"expires", next.NotAfter().UTC().Format(time.RFC3339), "renew_in", wait.Round(time.Second).String())
			}
		}
		if err != nil {
			wait = m.backoff(failures)
			failures++
			if now := m.cfg.Now(); err.Error() != logged || now.Sub(loggedAt) >= logAgain {
				loggedAt, logged = now, err.Error()
				m.cfg.Log.Error("no new certificate, trying again", "failures", failures, "error", err)
			}
		}
		m.note(current, err)
		if !m.sleep(ctx, current, max(wait, floor), floor) {
			return
		}
	}
}

func (m *Manager) note(current *Certificate, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.status.Certificate == nil && m.status.Err == nil
	if m.status.Certificate == nil && current != nil {
		close(m.obtained)
	}
	m.status.Certificate, m.status.Err = current, err
	if err != nil {
		if first {
			close(m.failed)
		}
		switch {
		case m.cfg.Files != nil:
			m.status.FileFailures++
		case m.cfg.Provider == nil:
			m.status.Failures++
		}
	}
}

// keyAlgorithm is the algorithm of workloads' keys.
const keyAlgorithm = certs.ECDSAP256

// renew gets one certificate with a new key and publishes it. After failures, every second
// attempt uses the token alone: the server refuses a revoked certificate.
func (m *Manager) renew(ctx context.Context, current *Certificate, failures int) (*Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	m.mu.Lock()
	have := m.usable(current)
	m.status.Requests++
	if failures > 0 {
		m.status.Retries++
	}
	m.mu.Unlock()
	if have.Certificate == nil && m.cfg.Provisioned != nil {
		have.Certificate = m.cfg.Provisioned.Client(m.cfg.Now())
	}
	if failures%2 == 1 {
		have.Certificate = nil
	}
	began := m.cfg.Now()
	cert, err := Request(ctx, m.cfg.Signer, m.cfg.Identity, m.cfg.TTL, have, began)
	m.mu.Lock()
	m.status.Waited += m.cfg.Now().Sub(began)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return cert, m.cfg.Publish(ctx, cert)
}

// Request gets one certificate with a new key.
func Request(ctx context.Context, signer Signer, id mesh.Identity, ttl time.Duration, current Current, now time.Time) (*Certificate, error) {
	key, err := certs.GenerateKey(keyAlgorithm)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	csr, err := certs.NewCSR(key, id)
	if err != nil {
		return nil, err
	}
	response, err := signer.Sign(ctx, csr, ttl, current)
	if err != nil {
		return nil, err
	}
	return check(id, key, response, now)
}

// renewIn returns how long to use cert. It fails when cert has expired by this machine's
// clock. A clock that is behind makes no life longer.
func (m *Manager) renewIn(cert *Certificate) (time.Duration, error) {
	life := min(cert.NotAfter().Sub(m.cfg.Now()), cert.NotAfter().Sub(cert.notBefore()))
	if life <= 0 {
		return 0, fmt.Errorf("the new certificate expired at %s by the clock of this machine: compare the clocks",
			cert.NotAfter().UTC().Format(time.RFC3339))
	}
	left := min(max(m.cfg.Grace+m.cfg.Jitter*(2*m.cfg.Rand.Float64()-1), 0), 1)
	return time.Duration(float64(life) * (1 - left)), nil
}

// backoff returns the wait after a failure and a number of failures in a row before it.
func (m *Manager) backoff(failures int) time.Duration {
	return backoff.Wait(failures+1, minRetry, maxRetry, m.cfg.Rand.Float64)
}

// sleep waits for d, or until a revocation is reported, but at least for least. It returns
// false when ctx ended first. It also returns when d has passed by the clock of the machine, or
// this clock is before the life of the certificate in use, which had begun: timers neither follow
// a clock that is set nor run while the machine is suspended, but peers compare clocks.
func (m *Manager) sleep(ctx context.Context, current *Certificate, d, least time.Duration) bool {
	due, looks := time.NewTimer(d), time.NewTicker(clockInterval)
	defer due.Stop()
	defer looks.Stop()
	start := m.cfg.Now().Round(0) // without its monotonic part
	valid := current != nil && !start.Before(current.notBefore())
	var first time.Time // of looks
	for {
		select {
		case <-due.C:
			return true
		case look := <-looks.C:
			if first.IsZero() {
				first = look
			}
			now := m.cfg.Now().Round(0)
			ahead := now.Sub(start) - look.Sub(first) - clockInterval
			if ahead > clockInterval && now.Sub(start) >= d || valid && now.Before(current.notBefore()) {
				m.cfg.Log.Warn("the clock of this machine was set, getting another certificate")
				return true
			}
			continue
		case <-m.again:
		case <-ctx.Done():
			return false
		}
		break
	}
	select {
	case <-time.After(least):
		return true
	case <-ctx.Done():
		return false
	}
}
