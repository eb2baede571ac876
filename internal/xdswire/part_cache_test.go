package xdswire

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

type part struct{ text string }

func TestSharedPartsLiveAsLongAsResources(t *testing.T) {
	var e Encoder
	made := 0
	get := func(key int) *part {
		p, err := Shared(&e, key, func() (*part, error) {
			made++
			return &part{"text"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	r := e.Raw(RouteType, "r", []byte("text")).Keeping([]*part{get(1), get(2)})
	runtime.GC()
	if get(1); made != 2 {
		t.Errorf("%d parts made, want 2: the resource keeps them", made)
	}
	runtime.KeepAlive(r)

	// The cache forgets parts that nobody keeps while it makes others.
	cache := CacheOf[int, part](&e)
	for i := range 200 * minSweep {
		get(i + 3)
		if i%minSweep == 0 {
			runtime.GC()
		}
	}
	if n := len(cache.parts); n > 40*minSweep {
		t.Errorf("%d parts are known though nobody keeps them", n)
	}
	made = 2
	if get(1); made != 3 {
		t.Errorf("%d parts made, want 3", made)
	}
}

func TestSharedErrorsAreNotKept(t *testing.T) {
	var e Encoder
	broken := errors.New("broken")
	if _, err := Shared(&e, 1, func() (*part, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	if p, err := Shared(&e, 1, func() (*part, error) { return &part{"text"}, nil }); err != nil || p.text != "text" {
		t.Errorf("%v, %v, want a part after the error", p, err)
	}
}

// TestSharedPartsAreMadeOnce: a part that many goroutines need at the same time is made once.
func TestSharedPartsAreMadeOnce(t *testing.T) {
	var e Encoder
	var made atomic.Int64
	var group sync.WaitGroup
	start := make(chan struct{})
	parts := make([]*part, 20)
	for i := range parts {
		group.Go(func() {
			<-start
			p, err := Shared(&e, "key", func() (*part, error) {
				made.Add(1)
				runtime.Gosched() // so that the others come
				return &part{"text"}, nil
			})
			if err != nil {
				t.Error(err)
			}
			parts[i] = p
		})
	}
	close(start)
	group.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times, want once", n)
	}
	for _, p := range parts {
		if p != parts[0] {
			t.Error("the goroutines have different parts")
		}
	}
	if CacheOf[string, part](&e).parts["key"].making {
		t.Error("the part is still being made")
	}
}
