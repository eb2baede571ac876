package output

import "testing"

func TestNearestWord(t *testing.T) {
	t.Parallel()
	known := []string{"once", "name", "names", "trust-domain", "Sidecar", "root-ca", "ear-one", "ear-two"}
	for written, want := range map[string]string{
		"nme": "name", "nmaes": "names", "trustdomain": "trust-domain", "Name": "name",
		"sidecarr": "Sidecar", "onec": "once", "root": "root-ca", "TRUST": "trust-domain", "ear": "", "ro": "", "nothing": "", "": "", "x": "",
	} {
		if got := NearestWord(written, known); got != want {
			t.Errorf("Word(%q) = %q, want %q", written, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1}, {"kitten", "sitting", 3}, {"dmeo", "demo", 1}, {"abcd", "badc", 2}, {"ab", "ba", 1}} {
		if got := EditDistance(tc.a, tc.b); got != tc.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
