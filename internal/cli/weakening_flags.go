package cli

import (
	"slices"

	"github.com/spf13/pflag"
)

// weakensKey is an annotation of flags: the values that weaken security, none for any but the default.
const weakensKey = "meshctl_weakens"

// MarkWeakening declares that with these values of a flag, or with any but its default,
// less is verified, protected or kept. A command warns when such a value is from the
// environment or the configuration file.
func MarkWeakening(fs *pflag.FlagSet, name string, values ...string) {
	_ = fs.SetAnnotation(name, weakensKey, values) // fails for an unknown flag only
}

// ForceVar defines --force.
func ForceVar(fs *pflag.FlagSet, p *bool, usage string) {
	fs.BoolVar(p, "force", false, usage)
	MarkWeakening(fs, "force")
}

// weakens reports whether the value of a flag weakens security.
func weakens(f *pflag.Flag) bool {
	values, marked := f.Annotations[weakensKey]
	value := f.Value.String()
	return marked && value != f.DefValue && (len(values) == 0 || slices.Contains(values, value))
}
