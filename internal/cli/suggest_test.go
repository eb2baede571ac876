package cli

import "testing"

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	known := []string{"once", "name", "names", "trust-domain"}
	for written, want := range map[string]string{
		"nme":         `, did you mean "name"?`,
		"nmaes":       `, did you mean "names"?`,
		"trustdomain": `, did you mean "trust-domain"?`,
		"Name":        `, did you mean "name"?`,
		"nothing":     "",
		"":            "",
	} {
		if got := didYouMean(written, known); got != want {
			t.Errorf("didYouMean(%q) = %q, want %q", written, got, want)
		}
	}
}
