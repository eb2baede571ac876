package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

const (
	configFlag = "config"
	helpFlag   = "help"
)

// configure sets each flag of cmd that was not typed from the environment, else from
// the configuration file.
func configure(env *Env, cmd *cobra.Command) error {
	flags := cmd.Flags()
	sources := map[string]string{} // of values, for messages
	v := viper.New()
	if err := v.BindPFlags(flags); err != nil {
		return err
	}
	path, explicit, err := configPath(env, flags.Lookup(configFlag))
	if err != nil {
		return err
	}
	if path != "" {
		values, err := readConfig(cmd.Context(), path, cmd.Root(), sources)
		switch {
		case err == nil:
		case explicit || !isOutOfReach(err):
			return err
		case isClosed(path): // the file exists, so somebody may miss it
			fmt.Fprintf(env.Stderr, "Warning: %v; the command runs without it\n", err)
		}
		if err := v.MergeConfigMap(values); err != nil {
			return err
		}
	}
	variables := environment(env, flags, sources)
	if err := v.MergeConfigMap(variables); err != nil {
		return err
	}
	lost := overridden(flags, variables)

	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !v.InConfig(f.Name) || isTypedOnly(f) || slices.Contains(lost, f.Name) {
			return
		}
		switch err := setFlag(flags, f, v.Get(f.Name)); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", sources[f.Name], err))
		case weakens(f):
			_, usage := pflag.UnquoteUsage(f)
			env.Warnf("--%s is set by %s: %s", setting(f), sources[f.Name], usage)
		}
	})
	return errors.Join(errs...)
}

// setting returns the name of a flag, with its value unless it is a bool.
func setting(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return f.Name
	}
	return f.Name + " " + f.Value.String()
}

func isTypedOnly(f *pflag.Flag) bool {
	_, is := f.Annotations[typedOnlyKey]
	return is
}

// overridden returns the flags that lose to a rival: one that was typed, with another
// value than its default, or one in the environment when the flag is in the file.
func overridden(flags *pflag.FlagSet, variables map[string]any) (lost []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		for _, name := range f.Annotations[rivalsKey] {
			rival := flags.Lookup(name)
			typed := rival.Changed && rival.Value.String() != rival.DefValue
			if name != f.Name && (typed || variables[name] != nil && variables[f.Name] == nil) {
				lost = append(lost, f.Name)
			}
		}
	})
	return lost
}

// configPath returns the path of the configuration file, empty for none, and whether
// the caller named it.
func configPath(env *Env, flag *pflag.Flag) (path string, explicit bool, err error) {
	if flag.Changed {
		if flag.Value.String() == "" {
			return "", false, errors.New("--config is empty")
		}
		return flag.Value.String(), true, nil
	}
	if path := env.Getenv(envName(configFlag)); path != "" {
		return path, true, nil
	}
	dir := env.XDGDir("XDG_CONFIG_HOME", ".config")
	if dir == "" {
		return "", false, nil
	}
	return filepath.Join(dir, "meshctl", "config.yaml"), false, nil
}

// maxConfigSize bounds the configuration file, in bytes.
const maxConfigSize = 1 << 20

// isOutOfReach reports whether an error means that this user has no such file. HOME often names the
// directory of another user, in a container for example.
func isOutOfReach(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)
}

// isClosed reports whether a file is there, but this user may not read it.
func isClosed(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readConfig returns the values of a configuration file by flag name, each a string or
// a []string, and adds the place of each to sources. A key must be a flag of a command
// under root.
func readConfig(ctx context.Context, path string, root *cobra.Command, sources map[string]string) (map[string]any, error) {
	mapping, err := files.Wait(ctx, func() ([]*yaml.Node, error) { // it may be a named pipe
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("configuration file: %w", err)
		}
		defer file.Close()
		mapping, err := readMapping(file)
		if err != nil {
			return nil, fmt.Errorf("configuration file %s: %w", path, err)
		}
		return mapping, nil
	})
	if err != nil {
		return nil, err
	}

	known := flagNames(root)
	values := map[string]any{}
	var errs []error
	for i := 0; i+1 < len(mapping); i += 2 {
		key := mapping[i].Value
		place := fmt.Sprintf("%s:%d: key %q", path, mapping[i].Line, key)
		value, err := nodeValue(mapping[i+1])
		switch {
		case key == configFlag:
			errs = append(errs, fmt.Errorf("%s cannot be set in the file itself", place))
		case !slices.Contains(known, key):
			errs = append(errs, fmt.Errorf("%s is not a flag of any command%s", place, output.DidYouMean(key, known)))
		case values[key] != nil:
			errs = append(errs, fmt.Errorf("%s is given twice", place))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s %w", place, err))
		default:
			values[key] = value
			sources[key] = place
		}
	}
	return values, errors.Join(errs...)
}

// readMapping returns the alternating keys and values of the one YAML mapping in r.
func readMapping(r io.Reader) ([]*yaml.Node, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxConfigSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigSize {
		return nil, fmt.Errorf("larger than %d bytes", maxConfigSize)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one YAML document")
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		if top.Tag == "!!null" {
			return nil, nil
		}
		return nil, fmt.Errorf("line %d: want flag names and values, such as trust-domain: prod.example", top.Line)
	}
	return top.Content, nil
}

// nodeValue returns a scalar as the string in the file, and a list of scalars as a
// []string.
func nodeValue(node *yaml.Node) (any, error) {
	node = resolve(node)
	if isScalar(node) {
		return node.Value, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, errors.New("must be a value or a list of values")
	}
	list := []string{}
	for _, item := range node.Content {
		value := resolve(item)
		if !isScalar(value) {
			return nil, fmt.Errorf("must be a list of plain values, line %d has another", item.Line)
		}
		list = append(list, value.Value)
	}
	return list, nil
}

func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isScalar(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.Tag != "!!null"
}

// environment returns the values of the environment by flag name, as readConfig does
// for the file.
func environment(env *Env, flags *pflag.FlagSet, sources map[string]string) map[string]any {
	values := map[string]any{}
	flags.VisitAll(func(f *pflag.Flag) {
		value := env.Getenv(envName(f.Name))
		if value == "" || f.Name == helpFlag || isTypedOnly(f) {
			return
		}
		sources[f.Name] = "environment variable " + envName(f.Name)
		if _, list := f.Value.(pflag.SliceValue); list {
			values[f.Name] = strings.Split(value, ",")
		} else {
			values[f.Name] = value
		}
	})
	return values
}

// envName returns the environment variable of a flag.
func envName(flag string) string {
	return "MESHCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// setFlag sets f to value, a string or a []string.
func setFlag(flags *pflag.FlagSet, f *pflag.Flag, value any) error {
	slice, takesList := f.Value.(pflag.SliceValue)
	switch value := value.(type) {
	case string:
		if !takesList {
			return plainer(flags.Set(f.Name, value), f, value)
		}
		f.Changed = true
		return slice.Replace([]string{value})
	case []string:
		if !takesList {
			return errors.New("takes one value, not a list")
		}
		f.Changed = true
		return slice.Replace(value)
	default:
		return fmt.Errorf("is a %T", value)
	}
}

// plainer replaces an error that names a function of strconv by one that names the type
// of the flag.
func plainer(err error, f *pflag.Flag, value string) error {
	if err == nil {
		return nil
	}
	want := ""
	switch f.Value.Type() {
	case "bool":
		want = "true or false"
	case "int", "int64", "uint16":
		want = "a whole number"
	default:
		return err
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: want %s", value, f.Name, want)
}

// flagNames returns the flags of cmd and of all commands below it that a configuration
// file may set.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) {
		if f.Name != helpFlag && f.Name != configFlag {
			names = append(names, f.Name)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	for _, sub := range cmd.Commands() {
		names = append(names, flagNames(sub)...)
	}
	return names
}
