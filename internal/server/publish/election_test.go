package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// oneLease is an API server with one Lease, which checks resource versions.
type oneLease struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
}

func refused(reason func(schema.GroupResource, string) error) error {
	return reason(coordinationv1.Resource("leases"), LeaseName)
}

func notFound(r schema.GroupResource, name string) error { return apierrors.NewNotFound(r, name) }

func exists(r schema.GroupResource, name string) error { return apierrors.NewAlreadyExists(r, name) }

func conflict(r schema.GroupResource, name string) error { return apierrors.NewConflict(r, name, nil) }

func (o *oneLease) get() (*coordinationv1.Lease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lease == nil {
		return nil, refused(notFound)
	}
	return o.lease.DeepCopy(), nil
}

// put writes a Lease. Without a resource version it creates the Lease.
func (o *oneLease) put(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case lease.ResourceVersion == "" && o.lease != nil:
		return nil, refused(exists)
	case lease.ResourceVersion != "" && o.lease == nil:
		return nil, refused(notFound)
	case o.lease != nil && lease.ResourceVersion != o.lease.ResourceVersion:
		return nil, refused(conflict)
	}
	o.version++
	o.lease = lease.DeepCopy()
	o.lease.ResourceVersion = strconv.Itoa(o.version)
	return o.lease.DeepCopy(), nil
}

func (o *oneLease) edit(change func(*coordinationv1.Lease)) {
	lease, err := o.get()
	if err != nil {
		panic(err)
	}
	change(lease)
	if _, err := o.put(lease); err != nil {
		panic(err)
	}
}

func (o *oneLease) delete() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lease = nil
}

// connection is the connection of a replica to the API server, with faults.
type connection struct {
	*oneLease
	mu    sync.Mutex
	fault func(ctx context.Context, write bool) (before, after error)
}

func (l *connection) set(fault func(context.Context, bool) (before, after error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = fault
}

func (l *connection) do(ctx context.Context, write bool, ask func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	fault := l.fault
	l.mu.Unlock()
	var after error
	if fault != nil {
		var before error
		if before, after = fault(ctx, write); before != nil {
			return nil, before
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lease, err := ask()
	if after != nil {
		return nil, after
	}
	return lease, err
}

func (l *connection) Get(ctx context.Context, _ string) (*coordinationv1.Lease, error) {
	return l.do(ctx, false, l.get)
}

func (l *connection) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.do(ctx, true, func() (*coordinationv1.Lease, error) { return l.put(lease) })
}

func (l *connection) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.do(ctx, true, func() (*coordinationv1.Lease, error) { return l.put(lease) })
}

// Faults of a connection.
func broken(context.Context, bool) (before, after error) { return errors.New("no route"), nil }

func silent(ctx context.Context, _ bool) (before, after error) {
	<-ctx.Done()
	return ctx.Err(), nil
}

func noAnswer(_ context.Context, write bool) (before, after error) {
	if write {
		return nil, errors.New("the connection was reset")
	}
	return nil, nil
}

// election has replicas that compete for one Lease, in a synctest bubble.
type election struct {
	t           *testing.T
	api         oneLease
	connections map[string]*connection
	stops       map[string]func()
	began       time.Time

	mu      sync.Mutex
	working []string
	events  []string
}

func (c *election) start(name string, clock func() time.Time) {
	l := &connection{oneLease: &c.api}
	c.connections[name] = l
	lease := NewLease(LeaseConfig{Namespace: "system", Holder: name, Now: clock, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := lease.run(ctx, l, []Task{func(ctx context.Context) error {
			c.note("+"+name, func() { c.working = append(c.working, name) })
			<-ctx.Done()
			c.note("-"+name, func() { c.working = slices.DeleteFunc(c.working, func(n string) bool { return n == name }) })
			return ctx.Err()
		}})
		if err != nil {
			c.t.Errorf("%s ended with %v", name, err)
		}
	}()
	c.stops[name] = func() { cancel(); <-done }
}

// at waits until a second of the test.
func (c *election) at(seconds float64) {
	time.Sleep(time.Until(c.began.Add(time.Duration(seconds * float64(time.Second)))))
}

// note records an event with its second.
func (c *election) note(event string, change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.events = append(c.events, fmt.Sprintf("%d%s", int(time.Since(c.began).Seconds()), event))
	if len(c.working) > 1 {
		c.t.Errorf("%s: %v write at the same time", strings.Join(c.events, " "), c.working)
	}
}

// TestElection: replica a, and b one second later, compete for one Lease, and at most
// one of them works at any time. The Lease lasts 15 seconds, the holder gives up after
// 10 seconds without a renewal, and requests are 2 seconds apart.
func TestElection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		skew time.Duration // of b's clock
		do   func(c *election)
		want string
	}{
		"the first keeps it": {want: "0+a"},
		"who ends gives it back": {
			do:   func(c *election) { c.at(20.5); c.stops["a"]() },
			want: "0+a 20-a 21+b",
		},
		// a's last renewal was at 20, b saw it at 21.
		"a holder without a way to the API stops before another begins": {
			do:   func(c *election) { c.at(21.5); c.connections["a"].set(broken) },
			want: "0+a 30-a 37+b",
		},
		"a holder whose requests hang stops before another begins": {
			do:   func(c *election) { c.at(21.5); c.connections["a"].set(silent) },
			want: "0+a 30-a 37+b",
		},
		"a clock an hour ahead takes nothing away": {
			skew: time.Hour, want: "0+a",
		},
		"a clock an hour behind waits no longer": {
			skew: -time.Hour, do: func(c *election) { c.at(21.5); c.connections["a"].set(silent) },
			want: "0+a 30-a 37+b",
		},
		"a short outage ends no term": {
			do: func(c *election) {
				c.at(21.5)
				c.connections["a"].set(broken)
				c.at(27.5)
				c.connections["a"].set(nil)
			},
			want: "0+a",
		},
		"a long outage for all, and the old holder is back before the Lease ends": {
			do: func(c *election) {
				c.at(21.5)
				c.connections["a"].set(broken)
				c.connections["b"].set(broken)
				c.at(31.5)
				c.connections["a"].set(nil)
				c.connections["b"].set(nil)
			},
			want: "0+a 30-a 32+a",
		},
		"answers that get lost end no term": {
			do: func(c *election) {
				c.at(21.5)
				c.connections["a"].set(noAnswer)
				c.at(27.5)
				c.connections["a"].set(nil)
			},
			want: "0+a",
		},
		"an edit of something else ends no term": {
			do: func(c *election) {
				c.at(21.5)
				c.api.edit(func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"by": "somebody"} })
				c.at(60)
				if l, err := c.api.get(); err != nil || l.Annotations["by"] != "somebody" {
					c.t.Errorf("the annotation is gone: %v, %v", l, err)
				}
			},
			want: "0+a",
		},
		"who is deposed stops, and waits as all others": {
			do: func(c *election) {
				c.at(21.5)
				c.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("x") })
				c.at(30)
				c.stops["b"]()
			},
			want: "0+a 22-a 38+a",
		},
		"a deleted Lease is still that of its holder": {
			do:   func(c *election) { c.at(22.5); c.api.delete() }, // b looks next
			want: "0+a 24-a 24+a",
		},
		"a deleted Lease whose holder is gone": {
			do:   func(c *election) { c.at(21.5); c.connections["a"].set(silent); c.api.delete() },
			want: "0+a 30-a 37+b",
		},
		"a Lease of a longer term is waited for": {
			do: func(c *election) {
				c.at(21.5)
				c.api.edit(func(l *coordinationv1.Lease) {
					l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new("x"), new(int32(60))
				})
				c.at(30)
				c.stops["b"]()
			},
			want: "0+a 22-a 82+a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &election{t: t, connections: make(map[string]*connection), stops: make(map[string]func()), began: time.Now()}
				c.start("a", time.Now)
				c.at(1)
				c.start("b", func() time.Time { return time.Now().Add(tt.skew) })
				if tt.do != nil {
					tt.do(c)
				}
				c.at(120)
				c.mu.Lock()
				got := strings.Join(c.events, " ")
				c.mu.Unlock()
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				for _, stop := range c.stops {
					stop()
				}
			})
		})
	}
}

// TestLeaseRecord: the Lease has the fields that other tools read.
func TestLeaseRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &election{t: t, connections: make(map[string]*connection), stops: make(map[string]func()), began: time.Now()}
		record := func() string {
			lease, err := c.api.get()
			if err != nil {
				t.Fatal(err)
			}
			s := lease.Spec
			return fmt.Sprintf("%s: %q %d, acquired %g, renewed %g, transitions %d", lease.Name, *s.HolderIdentity, *s.LeaseDurationSeconds,
				s.AcquireTime.Sub(c.began).Seconds(), s.RenewTime.Sub(c.began).Seconds(), *s.LeaseTransitions)
		}
		check := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := record(); got != want {
				t.Errorf("at %v got %s, want %s", time.Since(c.began), got, want)
			}
		}
		c.start("a", time.Now)
		time.Sleep(time.Second)
		check(`meshctl-writer: "a" 15, acquired 0, renewed 0, transitions 0`)
		c.start("b", time.Now)
		time.Sleep(time.Second)
		check(`meshctl-writer: "a" 15, acquired 0, renewed 2, transitions 0`)
		time.Sleep(500 * time.Millisecond)
		c.stops["a"]()
		check(`meshctl-writer: "" 1, acquired 2.5, renewed 2.5, transitions 0`)
		time.Sleep(time.Second)
		check(`meshctl-writer: "b" 15, acquired 3, renewed 3, transitions 1`)
		c.stops["b"]()
	})
}
