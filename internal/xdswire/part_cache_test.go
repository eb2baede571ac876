package xdswire

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

type part struct{ text string }

func TestSharedPartsLiveAsLongAsResources(t *testing.T) {
	var e Encoder
	made := 0
	get := func(key any) *part {
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

	deadline := time.Now().Add(2 * time.Minute)
	size := func() int {
		e.shared.mu.Lock()
		defer e.shared.mu.Unlock()
		return len(e.shared.parts)
	}
	for size() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d parts are known though nobody keeps them", size())
		}
		runtime.GC()
	}
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
