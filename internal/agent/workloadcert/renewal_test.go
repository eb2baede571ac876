package workloadcert

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshctl/meshctl/internal/certs/certstest"
)

// signer signs with a real authority, without a network.
type signer struct {
	ca     *certstest.IstioCA
	fail   int // refuse so many requests first
	ttl    time.Duration
	times  []time.Time
	shown  []bool
	silent bool // never answer
	// refuseShown refuses who shows a certificate.
	refuseShown bool
	// From awayFrom to awayUntil every request fails.
	awayFrom, awayUntil time.Time
}

func (s *signer) Sign(ctx context.Context, csr []byte, ttl time.Duration, current Current) (Response, error) {
	s.times = append(s.times, time.Now())
	s.shown = append(s.shown, current.Certificate != nil)
	if s.silent {
		<-ctx.Done()
		return Response{}, ctx.Err()
	}
	if now := time.Now(); now.After(s.awayFrom) && now.Before(s.awayUntil) {
		return Response{}, errors.New("away")
	}
	if s.fail > 0 || s.refuseShown && current.Certificate != nil {
		s.fail--
		return Response{}, errors.New("not now")
	}
	if s.ttl != 0 {
		ttl = s.ttl
	}
	chain, err := s.ca.Chain(string(csr), ttl)
	if err != nil {
		return Response{}, err
	}
	return parseResponse(chain, nil)
}

// runManager runs a manager for d of fake time.
func runManager(t *testing.T, s *signer, d time.Duration, adjust func(*Config), made ...func(*Manager)) (m *Manager, published []*Certificate, log string) {
	t.Helper()
	var text strings.Builder
	cfg := Config{
		Identity: certstest.Identity(), Signer: s, TTL: 10 * time.Minute, Grace: 0.5, Jitter: 0.01,
		Publish: func(_ context.Context, c *Certificate) error { published = append(published, c); return nil },
		Log:     slog.New(slog.NewTextHandler(&text, nil)),
		Now:     time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	if adjust != nil {
		adjust(&cfg)
	}
	m = NewManager(cfg)
	for _, f := range made {
		f(m)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	m.Run(ctx)
	return m, published, text.String()
}

func TestManagerRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t)}
		m, published, _ := runManager(t, s, 21*time.Minute, nil)
		if len(published) != 5 {
			t.Fatalf("%d certificates in 21 minutes of 10-minute certificates, want 5", len(published))
		}
		for i := 1; i < len(s.times); i++ {
			if gap := s.times[i].Sub(s.times[i-1]); gap < 294*time.Second || gap > 306*time.Second {
				t.Errorf("renewed after %v, want 5m give or take 6s", gap)
			}
		}
		if s.shown[0] || !s.shown[1] {
			t.Errorf("certificate shown: %v, want it from the second request on", s.shown)
		}
		if st := m.Status(); st.Certificate != published[4] || st.Err != nil || st.Requests != 5 || st.Failures != 0 {
			t.Errorf("status %+v", st)
		}
		if string(mustKey(t, published[0])) == string(mustKey(t, published[1])) {
			t.Error("the key was used twice")
		}
	})
}

func TestManagerTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t), fail: 100}
		m, published, log := runManager(t, s, 10*time.Minute, nil)
		if n := len(s.times); n < 20 || n > 60 {
			t.Errorf("%d attempts in 10 minutes, want one every 15 to 30 s after a quick start", n)
		}
		if n := strings.Count(log, "not now"); n < 5 || n > 25 {
			t.Errorf("the same failure was logged %d times in 10 minutes", n)
		}
		if st := m.Status(); len(published) > 0 || st.Err == nil || st.Failures != uint64(len(s.times)) {
			t.Errorf("status %+v after %d failures", st, len(s.times))
		}
	})
}

func TestManagerRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t), fail: 3}
		m, published, _ := runManager(t, s, time.Minute, nil)
		if st := m.Status(); len(published) != 1 || st.Err != nil || st.Failures != 3 || st.Requests != 4 || st.Retries != 3 {
			t.Errorf("%d certificates, status %+v", len(published), st)
		}
	})
}

// TestManagerOutlivesAuthority: while the authority is away for an hour in which the certificate should be
// renewed, the certificate stays in use, and it is renewed when the authority is back.
func TestManagerOutlivesAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &signer{ca: certstest.NewIstioCA(t), awayFrom: began.Add(30 * time.Minute), awayUntil: began.Add(90 * time.Minute)}
		var at []time.Duration
		m, published, _ := runManager(t, s, 95*time.Minute, func(c *Config) {
			publish := c.Publish
			c.TTL, c.Publish = 2*time.Hour, func(ctx context.Context, cert *Certificate) error {
				at = append(at, time.Since(began))
				return publish(ctx, cert)
			}
		})
		if len(published) != 2 || at[1] < 90*time.Minute || at[1] > 91*time.Minute {
			t.Fatalf("certificates after %v, want one at the start and one when the authority is back", at)
		}
		if until := published[0].NotAfter().Sub(began); until < at[1] {
			t.Errorf("the first certificate expired after %v, before the second came after %v", until, at[1])
		}
		if st := m.Status(); st.Err != nil || st.Failures < 50 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestManagerGivesUpAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t), silent: true}
		m, _, _ := runManager(t, s, time.Minute, nil)
		if len(s.times) < 3 {
			t.Errorf("%d attempts in a minute with an authority that does not answer", len(s.times))
		}
		if st := m.Status(); st.Waited < time.Duration(st.Failures)*attemptTimeout {
			t.Errorf("%d requests without a response took %v", st.Failures, st.Waited)
		}
	})
}

func TestManagerWithWrongClock(t *testing.T) {
	for name, skew := range map[string]time.Duration{"a day ahead": 25 * time.Hour, "5 minutes behind": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &signer{ca: certstest.NewIstioCA(t)}
				m, published, _ := runManager(t, s, 10*time.Minute, func(c *Config) {
					c.Now = func() time.Time { return time.Now().Add(skew) }
				})
				if len(published) == 0 {
					t.Error("no certificate is used")
				}
				for i := 1; i < len(s.times); i++ {
					if gap := s.times[i].Sub(s.times[i-1]); gap < time.Second {
						t.Errorf("asked again after %v: a storm", gap)
					}
				}
				if err := m.Status().Err; skew > 0 && (err == nil || !strings.Contains(err.Error(), "clock")) {
					t.Errorf("status says %v, want the clocks named", err)
				}
			})
		})
	}
}

// TestManagerFollowsTheClock: a clock that is set past the end of the certificate, or before its
// begin, leads to another certificate, and no storm of requests.
func TestManagerFollowsTheClock(t *testing.T) {
	for name, jump := range map[string]time.Duration{"ahead": 15 * time.Minute, "back": -15 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &signer{ca: certstest.NewIstioCA(t), ttl: 20 * time.Minute}
				start := time.Now()
				_, published, log := runManager(t, s, 2*time.Minute, func(c *Config) {
					c.Now = func() time.Time {
						if now := time.Now(); now.Sub(start) < time.Minute {
							return now
						}
						return time.Now().Add(jump)
					}
				})
				if len(published) != 2 || s.times[1].Sub(s.times[0]) > time.Minute+2*clockInterval || !strings.Contains(log, "the clock of this machine was set") {
					t.Errorf("%d certificates at %v, want a second one soon after the clock was set:\n%s", len(published), s.times, log)
				}
			})
		})
	}
}

func TestManagerTellsOfPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := runManager(t, &signer{ca: certstest.NewIstioCA(t)}, time.Minute, func(c *Config) {
			c.Publish = func(context.Context, *Certificate) error { return errors.New("cannot publish") }
		})
		if st := m.Status(); st.Certificate != nil || st.Err == nil || st.Err.Error() != "cannot publish" {
			t.Errorf("status %+v", st)
		}
	})
}

// A certificate that was revoked is not shown, and another one is got at once.
func TestManagerRenewsWhatIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t)}
		var m *Manager
		_, published, _ := runManager(t, s, time.Minute, func(c *Config) {
			publish := c.Publish
			c.Publish = func(ctx context.Context, cert *Certificate) error {
				if len(s.times) == 1 {
					time.AfterFunc(10*time.Second, func() {
						m.Revoked(cert.chain[0])
						m.Revoked(cert.chain[0])
					})
				}
				return publish(ctx, cert)
			}
		}, func(made *Manager) { m = made })
		if len(published) != 2 || s.shown[1] {
			t.Errorf("%d certificates, shown %v, want a second one that is asked for without the first", len(published), s.shown)
		}
		if gap := s.times[1].Sub(s.times[0]); gap > 12*time.Second {
			t.Errorf("it came after %v", gap)
		}
	})
}

// Who shows a certificate that the authority does not like is not let in, so
// every second try is without.
func TestManagerTriesWithoutTheCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ca: certstest.NewIstioCA(t), refuseShown: true}
		_, published, _ := runManager(t, s, 6*time.Minute, nil)
		if len(published) != 2 {
			t.Errorf("%d certificates, shown %v", len(published), s.shown)
		}
	})
}
