package installcmd

import "testing"

// TestReasonOf: the reason is the part of Envoy's text that is about the resource, in one line.
func TestReasonOf(t *testing.T) {
	t.Parallel()
	const listeners = "Error adding/updating listener(s) 0.0.0.0_80: script load error: line 1\n near '<eof>'\n0.0.0.0_90: malformed IP address: nope\n"
	for _, tt := range []struct{ text, resource, want string }{
		{listeners, "0.0.0.0_80", "script load error: line 1;  near '<eof>'"},
		{listeners, "0.0.0.0_90", "malformed IP address: nope"},
		{"no reason\nwith a name\n", "a", "no reason; with a name"},
		{"Error adding/updating cluster(s) b: wrong", "a", "Error adding/updating cluster(s) b: wrong"},
	} {
		if got := reasonOf(tt.text, tt.resource); got != tt.want {
			t.Errorf("%s of %q: %q, want %q", tt.resource, tt.text, got, tt.want)
		}
	}
}
