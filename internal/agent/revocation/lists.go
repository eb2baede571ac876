// Package revocation keeps the revocation lists that the workload's Envoy checks
// its peers with: from a file, where Istio mounts one, else from the control
// plane.
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
	lookInterval = time.Second // how often the file is looked at
	askInterval  = time.Minute // how often the control plane is asked, give or take a tenth
	judgeAgain   = time.Minute // how often lists that do not change are judged anew
	// askNever is when a control plane is asked again that does not know the
	// question.
	askNever   = time.Hour
	askTimeout = 5 * time.Second

	maxLists = 16 << 20 // bytes
)

// Call makes a call to the control plane as the workload.
type Call func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error

// Config of Lists. All fields are needed.
type Config struct {
	// File holds lists, PEM. Once it was there, only it counts.
	File string
	Call Call
	// Update is told that Envoy is to be given other lists.
	Update func() error
	// Revoked is told that lists name the workload's own certificate.
	Revoked func(leaf *x509.Certificate)
	Log     *slog.Logger
	Now     func() time.Time
	Rand    *rand.Rand
}

// Lists are the revocation lists in use. They may be used concurrently.
type Lists struct {
	cfg   Config
	inUse atomic.Pointer[use]

	mu           sync.Mutex          // is held while the control plane is asked
	chain, roots []*x509.Certificate // of the workload; lists are judged by them
	source       source
	judged       time.Time
	askAt        time.Time
	version      string // of what the control plane answered last
}

// use is what is in use.
type use struct {
	Status
	pem []byte
}

// source is what was read last, good or bad.
type source struct {
	name  string // of the file, or of the control plane
	stamp string // of the file
	found bool   // the file was there once
	data  []byte
	err   error // why there is no data
}

// Status is how the lists are.
type Status struct {
	// Count is how many are in use, Until when the first of them has to be
	// replaced, zero for never.
	Count int
	Until time.Time
	// Err is why the ones in use are not the last ones that came, or what is
	// wrong with them.
	Err error
}

// New returns a Lists that has none.
func New(cfg Config) *Lists {
	l := &Lists{cfg: cfg}
	l.inUse.Store(&use{})
	return l
}

// Status returns how things stand.
func (l *Lists) Status() Status { return l.inUse.Load().Status }

// PEM returns the lists in use, empty for none.
func (l *Lists) PEM() []byte { return l.inUse.Load().pem }

// Judge has the lists be judged by this chain of the workload, leaf first, from
// now on. The first time it waits for lists, within bounds, so that an Envoy
// that starts refuses at once who is revoked.
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

// follow reports whether other lists are in use now.
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

// look reads the lists that there are now, and reports whether they are others
// than before. A file that is being written is let rest first, unless at once.
// The lock must be held.
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

// judge takes the lists that were read into use if Envoy can work with them. A
// set that it could not work with would have it refuse everybody, so the last
// good one stays. The lock must be held.
func (l *Lists) judge() {
	now, before := l.cfg.Now(), l.inUse.Load()
	next := *before
	l.judged = now
	var soon error
	switch {
	case l.source.err != nil:
		next.Err = l.source.err
	case l.source.data == nil:
		next = use{}
	default:
		v := check(l.source.name, l.source.data, l.chain, l.roots, now)
		if next.Err = v.err; v.err == nil {
			next = use{Status{Count: v.count, Until: v.until, Err: v.soon}, v.pem}
		}
		if soon = v.soon; v.revoked {
			l.cfg.Revoked(l.chain[0])
		}
	}
	l.inUse.Store(&next)
	switch {
	case text(before.Err) == text(next.Err) && bytes.Equal(before.pem, next.pem):
	case soon != nil:
		l.cfg.Log.Warn("revocation lists have to be replaced soon", "lists", next.Count, "error", next.Err)
	case next.Err != nil:
		l.cfg.Log.Error("no new revocation lists, envoy stays with those that it has", "lists", next.Count, "error", next.Err)
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

// verdict is what check finds.
type verdict struct {
	pem     []byte
	count   int
	until   time.Time
	err     error // why they cannot be used
	soon    error // what will be wrong with them
	revoked bool  // they name the first of the chain
}

// check judges lists as Envoy would, for peers that have a chain like ours.
func check(place string, data []byte, chain, roots []*x509.Certificate, now time.Time) verdict {
	lists := verify.NewFile("ca-crl.pem", data)
	lists.Place, lists.Role = place, verify.RoleCRL
	own := verify.NewFile("cert-chain.pem", certs.EncodeCerts(chain...))
	own.Role = verify.RoleCert
	trusted := verify.NewFile("root-cert.pem", certs.EncodeCerts(roots...))
	trusted.Role = verify.RoleRoots
	set := verify.Set{Place: place, Purpose: verify.Leaf, Files: []verify.File{own, trusted, lists}}

	var v verdict
	var bad, soon []verify.Finding
	for _, f := range verify.Check(set, verify.Options{Now: now}) {
		switch {
		case f.Code == verify.Revoked:
			v.revoked = v.revoked || f.Fingerprint == verify.Short(chain[0])
		case f.Place != place && !strings.HasPrefix(f.Place, place+":"):
		case f.Severity == verify.Error:
			bad = append(bad, f)
		case f.Code == verify.ExpiresSoon:
			soon = append(soon, f)
		}
	}
	if len(bad) > 0 {
		v.err = &verify.Failure{Findings: bad}
		return v
	}
	if len(soon) > 0 {
		v.soon = &verify.Failure{Findings: soon}
	}
	for _, b := range lists.Blocks {
		if b.CRL == nil {
			continue
		}
		v.count++
		v.pem = append(v.pem, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: b.CRL.Raw})...)
		if end := b.CRL.NextUpdate; !end.IsZero() && (v.until.IsZero() || end.Before(v.until)) {
			v.until = end
		}
	}
	return v
}
