package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// ChoiceVar defines a flag that takes one of the values. The first one is the default.
// The usage is completed with the values.
func ChoiceVar(fs *pflag.FlagSet, p *string, name, usage string, values ...string) {
	*p = values[0]
	fs.Var(&choiceValue{p, values}, name, usage+": "+OrList(values))
	Suggest(fs, name, values...)
}

type choiceValue struct {
	p      *string
	values []string
}

func (c *choiceValue) Set(s string) error {
	if !slices.Contains(c.values, s) {
		return fmt.Errorf("%q is not supported, use %s", s, OrList(c.values))
	}
	*c.p = s
	return nil
}

func (c *choiceValue) Type() string   { return "choice" }
func (c *choiceValue) String() string { return *c.p }

// OrList returns "a, b or c".
func OrList(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// Annotations of flags that configure reads.
const (
	typedOnlyKey = "meshctl_typed_only" // only the command line sets the flag
	rivalsKey    = "meshctl_rivals"     // the flags of the same choice
	weakensKey   = "meshctl_weakens"    // the values that weaken security, none for any but the default
)

// Rivals declares that flags are one choice. A value from the environment or the
// configuration file gives way to a rival from a source with higher precedence.
func Rivals(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if f := fs.Lookup(name); f != nil {
			_ = fs.SetAnnotation(name, rivalsKey, append(f.Annotations[rivalsKey], names...)) // the flag is there
		}
	}
}

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
