package fields

import (
	"log/slog"
	"strings"
	"testing"
)

// TestLogProblem: the message says whether the configuration has an effect.
func TestLogProblem(t *testing.T) {
	t.Parallel()
	const unused, effect = `level=WARN msg="configuration is not used"`, `level=WARN msg="configuration may not do what is wanted"`
	for name, tc := range map[string]struct {
		kinds              []ProblemKind
		unenforced, shared bool
		want               string
	}{
		"no kinds":       {nil, false, false, unused},
		"unused":         {[]ProblemKind{Unused}, false, false, unused},
		"empty list":     {[]ProblemKind{EmptyList}, false, false, effect},
		"private key":    {[]ProblemKind{PrivateKey}, false, false, effect},
		"several":        {[]ProblemKind{PrivateKey, EmptyList}, false, false, effect},
		"also unused":    {[]ProblemKind{EmptyList, Unused}, false, false, unused},
		"refused policy": {[]ProblemKind{EmptyList, Refused}, true, false, `level=WARN msg="security policy is not enforced"`},
		"shared":         {[]ProblemKind{Unused}, false, true, `level=INFO msg="configuration is not used"`},
	} {
		var text strings.Builder
		LogProblem(slog.New(slog.NewTextHandler(&text, nil)), tc.kinds, tc.unenforced, tc.shared)
		if !strings.Contains(text.String(), tc.want) {
			t.Errorf("%s: got %s, want %s", name, text.String(), tc.want)
		}
	}
}
