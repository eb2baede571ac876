package cli

import "github.com/spf13/pflag"

// Alias defines another name of a flag, which the help does not show: an earlier name, or
// the name in another tool. Another command may have a flag of that name with another
// meaning, so the environment and the configuration file set only the flag itself.
func Alias(fs *pflag.FlagSet, name, alias string) {
	f := fs.Lookup(name)
	fs.AddFlag(&pflag.Flag{
		Name: alias, Usage: "Alias of --" + name, Value: aliasOf(f), DefValue: f.DefValue,
		NoOptDefVal: f.NoOptDefVal, Hidden: true,
	})
	TypedOnly(fs, alias)
}

// Rename defines the earlier name of a flag, as Alias does, for a flag whose new name has
// another meaning in the environment and the configuration file: these set only the
// earlier name.
func Rename(fs *pflag.FlagSet, name, earlier string) {
	Alias(fs, name, earlier)
	delete(fs.Lookup(earlier).Annotations, typedOnlyKey)
	TypedOnly(fs, name)
	Rivals(fs, name, earlier)
}

// TypedOnly declares that the environment and the configuration file do not set a flag.
func TypedOnly(fs *pflag.FlagSet, name string) {
	_ = fs.SetAnnotation(name, typedOnlyKey, nil) // fails for an unknown flag only
}

// aliasOf returns a value that sets a flag. A flag that is set by its alias counts as typed.
func aliasOf(f *pflag.Flag) pflag.Value {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return &aliasOfList{aliasValue{f.Value, f}, list}
	}
	return &aliasValue{f.Value, f}
}

type aliasValue struct {
	pflag.Value
	of *pflag.Flag
}

func (a *aliasValue) Set(s string) error {
	err := a.of.Value.Set(s)
	a.of.Changed = a.of.Changed || err == nil
	return err
}

func (a *aliasValue) String() string {
	if a.of == nil { // pflag compares with the zero value
		return ""
	}
	return a.of.Value.String()
}

type aliasOfList struct {
	aliasValue
	pflag.SliceValue
}

func (a *aliasOfList) Replace(list []string) error {
	err := a.SliceValue.Replace(list)
	a.of.Changed = a.of.Changed || err == nil
	return err
}
