// Package revocation keeps the revocation lists that the workload's Envoy checks its peers
// with. They come from a file, if one is mounted as for Istio, else from the control plane.
package revocation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

const (
	lookInterval = time.Second // between two looks at the file
	askInterval  = time.Minute // between two requests to the control plane, plus or minus a tenth
	judgeAgain   = time.Minute // between two checks of unchanged lists
	// askSoon is the interval after the first failed request, before the control plane has ever
	// answered. It doubles with each failure, up to maxFailures.
	askSoon     = time.Second
	maxFailures = 6
	// askNever is the interval for a control plane that does not implement the request.
	askNever   = time.Hour
	askTimeout = 5 * time.Second

	maxLists = 16 << 20 // bytes
)

// Config of Lists. All fields are needed.
type Config struct {
	// File holds lists, PEM. Once it has existed, no other source counts.
	File string
	// Call makes a call to the control plane as the workload.
	Call func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error
	// Update is called when Envoy needs other lists.
	Update func() error
	// Revoked is called when lists name the workload's own certificate.
	Revoked func(leaf *x509.Certificate)
	Log     *slog.Logger
	Now     func() time.Time
	Rand    *rand.Rand
}

// Lists holds the revocation lists in use. Its methods may be called concurrently.
type Lists struct {
	cfg   Config
	inUse atomic.Pointer[use]

	mu           sync.Mutex          // held during requests to the control plane, too
	chain, roots []*x509.Certificate // of the workload, which must work with the lists
	source       source
	judged       time.Time
	askAt        time.Time
	failures     int    // of requests before the first answer
	version      string // of the last response of the control plane
}

type use struct {
	Status
	pem []byte
}

// source is the last result of reading, good or bad.
type source struct {
	name  string // of the file, or of the control plane
	stamp string // of the file
	found bool   // the file has existed
	data  []byte
	err   error // why there is no data
}

// Status is the state of the lists.
type Status struct {
	// Count is the number of lists in use. Until is the time when the first of them must be
	// replaced, zero for never.
	Count int
	Until time.Time
	// Err is the reason why the newest lists are not in use, or a problem of the lists in
	// use.
	Err error
}

// New returns empty Lists.
func New(cfg Config) *Lists {
	l := &Lists{cfg: cfg}
	l.inUse.Store(&use{})
	return l
}

// Status returns the state.
func (l *Lists) Status() Status { return l.inUse.Load().Status }

// PEM returns the lists in use, empty for none.
func (l *Lists) PEM() []byte { return l.inUse.Load().pem }

// Judge checks the lists against this chain of the workload, leaf first, from now on. The
// first call waits for lists for a bounded time, so that a starting Envoy refuses revoked
// peers at once.
func (l *Lists) Judge(ctx context.Context, chain, roots []*x509.Certificate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.chain == nil
	l.chain, l.roots = chain, roots
	if first {
		l.look(ctx, true)
	}
	l.judge()
}

// Run follows the lists until ctx ends.
func (l *Lists) Run(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if l.follow(ctx) {
			if err := l.cfg.Update(); err != nil {
				return err
			}
		}
	}
}

// follow updates the lists in use and reports whether they changed.
func (l *Lists) follow(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chain == nil {
		return false
	}
	if !l.look(ctx, false) && l.cfg.Now().Sub(l.judged) < judgeAgain {
		return false
	}
	before := l.PEM()
	l.judge()
	return !bytes.Equal(before, l.PEM())
}

// look reads the current lists and reports whether they changed. It lets a file that was
// just written rest first, unless atOnce. The lock must be held.
func (l *Lists) look(ctx context.Context, atOnce bool) bool {
	switch info, err := os.Stat(l.cfg.File); {
	case err == nil:
		stamp := fmt.Sprint(files.Identity(info), info.Size(), info.ModTime().UnixNano())
		if stamp == l.source.stamp && l.source.name == l.cfg.File {
			return false
		}
		if age := l.cfg.Now().Sub(info.ModTime()); !atOnce && age >= 0 && age < lookInterval {
			return false // until the next look
		}
		l.source = source{name: l.cfg.File, stamp: stamp, found: true}
		if l.source.data, l.source.err = files.Read(l.cfg.File, maxLists); files.Transient(l.source.err) {
			l.source.stamp = "" // look again
		}
		return true
	case l.source.found:
		gone := fmt.Errorf("revocation lists: %w", err)
		if errors.Is(err, fs.ErrNotExist) {
			gone = fmt.Errorf("the file of the revocation lists is gone; put %s back, with lists that revoke nothing if that is meant", l.cfg.File)
		}
		changed := l.source.stamp != ""
		l.source = source{name: l.cfg.File, found: true, err: gone}
		return changed
	}
	return l.ask(ctx)
}

// judge puts the read lists into use if Envoy can work with them. With a bad set Envoy would
// refuse every peer, so the last good set stays. The lock must be held.
func (l *Lists) judge() {
	now, before := l.cfg.Now(), l.inUse.Load()
	next := *before
	l.judged = now
	expiring := false
	switch {
	case l.source.err != nil:
		next.Err = l.source.err
	case l.source.data == nil:
		next = use{}
	default:
		good, revoked, err := check(l.source.name, l.source.data, l.chain, l.roots, now)
		if next.Err = err; err == nil {
			next, expiring = good, good.Err != nil
		}
		if revoked {
			l.cfg.Revoked(l.chain[0])
		}
	}
	l.inUse.Store(&next)
	switch {
	case text(before.Err) == text(next.Err) && bytes.Equal(before.pem, next.pem):
	case expiring:
		l.cfg.Log.Warn("revocation lists must be replaced soon", "lists", next.Count, "error", next.Err)
	case next.Err != nil:
		l.cfg.Log.Error("no new revocation lists, envoy keeps its lists", "lists", next.Count, "error", next.Err)
	default:
		l.cfg.Log.Info("revocation lists in use", "from", l.source.name, "lists", next.Count)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// check checks lists as Envoy would for peers that have a chain like ours. It returns the
// usable lists, with Err if they will be unusable soon, and whether they name the first
// certificate of the chain. The error is the reason why they cannot be used.
func check(place string, data []byte, chain, roots []*x509.Certificate, now time.Time) (good use, revoked bool, err error) {
	lists := verify.NewFile("ca-crl.pem", place, data)
	lists.Role = verify.RoleCRL
	own := verify.NewFile("cert-chain.pem", "cert-chain.pem", certs.EncodeCerts(chain...))
	own.Role = verify.RoleCert
	trusted := verify.NewFile("root-cert.pem", "root-cert.pem", certs.EncodeCerts(roots...))
	trusted.Role = verify.RoleRoots
	set := verify.Set{Place: place, Purpose: verify.Leaf, Files: []verify.File{own, trusted, lists}}

	var bad, soon []verify.Finding
	for _, f := range verify.Check(set, verify.Options{Now: now}) {
		switch {
		case f.Code == verify.Revoked:
			revoked = revoked || f.Fingerprint == verify.Short(chain[0])
		case f.Place != place && !strings.HasPrefix(f.Place, place+":"):
		case f.Severity == verify.Error:
			bad = append(bad, f)
		case f.Code == verify.ExpiresSoon:
			soon = append(soon, f)
		}
	}
	if len(bad) > 0 {
		return use{}, revoked, &verify.Failure{Findings: bad}
	}
	if len(soon) > 0 {
		good.Err = &verify.Failure{Findings: soon}
	}
	for _, b := range lists.Blocks {
		if b.CRL == nil {
			continue
		}
		good.Count++
		good.pem = append(good.pem, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: b.CRL.Raw})...)
		if end := b.CRL.NextUpdate; !end.IsZero() && (good.Until.IsZero() || end.Before(good.Until)) {
			good.Until = end
		}
	}
	return good, revoked, nil
}
