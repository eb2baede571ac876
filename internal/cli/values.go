package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// ChoiceVar binds a flag that takes one of the values; the first is the
// default. The usage is completed with them.
func ChoiceVar(fs *pflag.FlagSet, p *string, name, short, usage string, values ...string) {
	*p = values[0]
	fs.VarP(&choiceValue{p, values}, name, short, usage+": "+OrList(values))
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

// OrList writes a, b or c.
func OrList(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
