package snapshot

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestPrivateKeysAreNotShown: no way of printing, logging or encoding shows a key.
func TestPrivateKeysAreNotShown(t *testing.T) {
	const secret = "MIGHAgEAMBMGByqGSM49"
	s := Secret{Pair: &KeyPair{Chain: []byte("chain"), Key: NewPrivateKey([]byte(secret))}}
	// fmt does not call the methods of a value in an unexported field.
	inner := struct{ pair KeyPair }{*s.Pair}
	for _, v := range []any{s, &s, s.Pair, *s.Pair, s.Pair.Key, &s.Pair.Key, inner, &inner, []any{s}, Event{s.Key(), &s}} {
		var out strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		text := out.String()
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) || strings.Contains(text, "77 73 71 72") {
			t.Errorf("%T shows the key:\n%s", v, text)
		}
	}
	if got := string(s.Pair.Key.PEM()); got != secret {
		t.Errorf("PEM is %q", got)
	}
	if (PrivateKey{}).PEM() != nil {
		t.Error("no key has PEM")
	}
}
