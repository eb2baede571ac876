package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// ChoiceVar defines a flag that takes one of the values, in upper or lower case. The first
// one is the default. The usage is completed with the values, which precede a remark after
// a semicolon.
func ChoiceVar[T ~string](fs *pflag.FlagSet, p *T, name, usage string, values ...T) {
	*p = values[0]
	FilterVar(fs, p, name, usage, values...)
}

// FilterVar defines a flag as ChoiceVar does, without a default.
func FilterVar[T ~string](fs *pflag.FlagSet, p *T, name, usage string, values ...T) {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	about, remark, remarked := strings.Cut(usage, "; ")
	usage = about + ": " + OrList(names)
	if remarked {
		usage += "; " + remark
	}
	fs.Var(&choiceValue[T]{p, names, *p == ""}, name, usage)
	Suggest(fs, name, names...)
}

type choiceValue[T ~string] struct {
	p        *T
	values   []string
	optional bool
}

func (c *choiceValue[T]) Set(s string) error {
	i := slices.IndexFunc(c.values, func(v string) bool { return strings.EqualFold(v, s) })
	switch {
	case i >= 0:
		*c.p = T(c.values[i])
	case s == "" && c.optional:
		*c.p = ""
	default:
		return fmt.Errorf("%.60q is not supported, use %s", s, OrList(c.values))
	}
	return nil
}

func (c *choiceValue[T]) Type() string   { return "choice" }
func (c *choiceValue[T]) String() string { return string(*c.p) }

// MapVar defines a flag that takes pairs of names and values, as in a=1,b=2, without a default.
func MapVar(fs *pflag.FlagSet, p *map[string]string, name, usage string) {
	fs.StringToStringVar(p, name, nil, usage)
	fs.Lookup(name).DefValue = "" // the help would show []
}

// NumberVar defines a flag that takes a whole number from least to most.
func NumberVar[T ~int | ~int64 | ~uint32](fs *pflag.FlagSet, p *T, name string, value, least, most T, usage string) {
	*p = value
	fs.Var(&numberValue[T]{p, least, most}, name, usage)
}

type numberValue[T ~int | ~int64 | ~uint32] struct {
	p           *T
	least, most T
}

func (n *numberValue[T]) Set(s string) error {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < int64(n.least) || v > int64(n.most) {
		return fmt.Errorf("want a number from %d to %d", n.least, n.most)
	}
	*n.p = T(v)
	return nil
}

func (n *numberValue[T]) Type() string   { return "number" }
func (n *numberValue[T]) String() string { return fmt.Sprint(*n.p) }

// OrList returns "a, b or c".
func OrList(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// Annotations of flags that configure reads.
const (
	typedOnlyKey = "meshctl_typed_only" // only the command line sets the flag
	rivalsKey    = "meshctl_rivals"     // the flags of the same choice
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
