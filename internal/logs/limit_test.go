package logs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestLimit: each message has a burst and a rate, and reports the dropped lines.
func TestLimit(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	log := slog.New(Limit(slog.NewTextHandler(&out, nil), func() time.Time { return now }))
	lines := func() int {
		return strings.Count(out.String(), "\n")
	}
	for i := range 1000 {
		// Attributes and groups do not make it another message.
		log.With("proxy", i).WithGroup("g").Warn("refused", "i", i)
	}
	if lines() != burst {
		t.Fatalf("%d lines of one message at once, want %d", lines(), burst)
	}
	log.Info("something else")
	log.Debug("refused", "level", "not enabled")
	if lines() != burst+1 {
		t.Fatalf("%d lines, want %d with another message", lines(), burst+1)
	}

	out.Reset()
	now = now.Add(time.Second)
	for range 1000 {
		log.Warn("refused")
	}
	if lines() != perSecond {
		t.Errorf("%d lines a second later, want %d", lines(), perSecond)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	if !strings.Contains(first, "left_out=800") {
		t.Errorf("first line %q, want left_out=800", first)
	}

	out.Reset()
	now = now.Add(time.Hour)
	for range 1000 {
		log.Warn("refused")
	}
	if lines() != burst {
		t.Errorf("%d lines after an hour, want %d", lines(), burst)
	}
}
