package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/output"
)

// TableVar defines --output of a command that prints a table. more are formats of only
// this command.
func TableVar(fs *pflag.FlagSet, f *output.Format, more ...string) { outputVar(fs, f, true, more) }

// TextVar defines --output of a command that prints a text, which is its format table,
// or a value. more are formats of only this command.
func TextVar(fs *pflag.FlagSet, f *output.Format, more ...string) { outputVar(fs, f, false, more) }

func outputVar(fs *pflag.FlagSet, f *output.Format, tables bool, more []string) {
	*f = output.FormatTable
	v := &outputValue{f, tables, more}
	fs.VarP(v, "output", "o", "Output `format`: "+OrList(v.names()))
	Suggest(fs, "output", slices.DeleteFunc(v.names(), func(name string) bool { return strings.Contains(name, "=") })...)
}

// outputValue is the value of --output.
type outputValue struct {
	format *output.Format
	tables bool
	more   []string
}

func (v *outputValue) names() []string { return append(output.Formats(v.tables), v.more...) }

func (v *outputValue) Type() string   { return "format" }
func (v *outputValue) String() string { return string(*v.format) }

func (v *outputValue) Set(s string) error {
	if slices.Contains(v.more, s) {
		*v.format = output.Format(s)
		return nil
	}
	f, err := output.ParseFormat(s)
	switch {
	case errors.Is(err, output.ErrFormat):
		return fmt.Errorf("output format %q is not supported, use %s", s, OrList(v.names()))
	case err != nil:
		return err
	case f.Wide() && !v.tables:
		return fmt.Errorf("output format %q is for tables only, use %s", s, OrList(v.names()))
	}
	*v.format = f
	return nil
}

// WriteTable prints a table.
func WriteTable(env *Env, f output.Format, t *output.Table) error {
	err := output.WriteTable(env.Stdout, f, t)
	if errors.Is(err, output.ErrColumn) {
		return Usagef("--output %w", err)
	}
	return err
}

// WriteResult prints a value, or its table when the format is one of tables.
func WriteResult(env *Env, f output.Format, v any, t *output.Table) error {
	if f.OfTable() {
		return WriteTable(env, f, t)
	}
	return output.Write(env.Stdout, f, v)
}
