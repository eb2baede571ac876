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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

const (
	configFlag = "config"
	helpFlag   = "help"
)

// configure gives each flag of cmd that was not typed its value from the
// environment, else from the configuration file.
func configure(env *Env, cmd *cobra.Command) error {
	flags := cmd.Flags()
	sources := map[string]string{} // where a key's value is from, for errors
	v := viper.New()
	if err := v.BindPFlags(flags); err != nil {
		return err
	}
	path, explicit, err := configPath(env, flags.Lookup(configFlag))
	if err != nil {
		return err
	}
	if path != "" {
		values, err := readConfig(cmd.Context(), path, explicit, cmd.Root(), sources)
		if err != nil {
			return err
		}
		if err := v.MergeConfigMap(values); err != nil {
			return err
		}
	}
	variables := environment(env, flags, sources)
	if err := v.MergeConfigMap(variables); err != nil {
		return err
	}
	beaten := beatenByRivals(flags, variables)

	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !v.InConfig(f.Name) || isTypedOnly(f) || slices.Contains(beaten, f.Name) {
			return
		}
		switch err := setFlag(flags, f, v.Get(f.Name)); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", sources[f.Name], err))
		case Weakens(f):
			// What replaces keys or verifies nobody must not happen unseen.
			_, usage := pflag.UnquoteUsage(f)
			fmt.Fprintf(env.Stderr, "warning: --%s is set by %s: %s\n", setting(f), sources[f.Name], usage)
		}
	})
	return errors.Join(errs...)
}

// Weakens reports whether a flag has a value with which less is verified, protected or
// kept than by default.
func Weakens(f *pflag.Flag) bool {
	value := f.Value.String()
	if value == f.DefValue {
		return false
	}
	switch f.Name {
	case "debug-network", "drop-unknown", "no-wait", "trusted-gateway-cidr":
		return true
	case "rbac":
		return value == string(create.Istio)
	case "tls-min-version":
		return value == "1.2"
	case "tls-key-exchange":
		return value == "classic"
	}
	words := []string{"allow", "force", "insecure", "plaintext", "security", "skip", "unsafe", "unverified", "verify"}
	return slices.ContainsFunc(strings.Split(f.Name, "-"), func(word string) bool { return slices.Contains(words, word) })
}

// setting is the name of a flag, with its value where that is more than true.
func setting(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return f.Name
	}
	return f.Name + " " + output.Escape(f.Value.String())
}

// typedOnlyKey is the annotation of a flag that has no value from elsewhere.
const typedOnlyKey = "meshctl_typed_only"

func isTypedOnly(f *pflag.Flag) bool {
	_, is := f.Annotations[typedOnlyKey]
	return is
}

// rivalsKey is the annotation of a flag with the names of its rivals.
const rivalsKey = "meshctl_rivals"

// Rivals says that these flags stand for one choice: a value from the environment or
// the configuration file gives way when a rival comes from nearer to the person.
func Rivals(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if f := flags.Lookup(name); f != nil {
			if f.Annotations == nil {
				f.Annotations = map[string][]string{}
			}
			f.Annotations[rivalsKey] = append(f.Annotations[rivalsKey], names...)
		}
	}
}

// beatenByRivals are the flags of which a rival was typed, with another value than its
// default, or is in the environment when they are not.
func beatenByRivals(flags *pflag.FlagSet, variables map[string]any) []string {
	var beaten []string
	flags.VisitAll(func(f *pflag.Flag) {
		for _, name := range f.Annotations[rivalsKey] {
			rival := flags.Lookup(name)
			typed := rival.Changed && rival.Value.String() != rival.DefValue
			if name != f.Name && (typed || variables[name] != nil && variables[f.Name] == nil) {
				beaten = append(beaten, f.Name)
			}
		}
	})
	return beaten
}

// configPath returns the configuration file to read, empty for none, and
// whether the person named it.
func configPath(env *Env, flag *pflag.Flag) (path string, explicit bool, err error) {
	if flag.Changed {
		if flag.Value.String() == "" {
			return "", false, errors.New("--config is empty")
		}
		return flag.Value.String(), true, nil
	}
	if path, _ := env.LookupEnv(envName(configFlag)); path != "" {
		return path, true, nil
	}
	dir, _ := env.LookupEnv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // the XDG rules: a relative path is ignored
		home, _ := env.LookupEnv("HOME")
		if !filepath.IsAbs(home) {
			return "", false, nil
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "meshctl", "config.yaml"), false, nil
}

// maxConfigSize bounds the configuration file, in bytes.
const maxConfigSize = 1 << 20

// readConfig returns the values of the file at path by flag name, each a
// string or a []string, and notes the place of each in sources. A key that no
// command under root has as a flag is an error.
func readConfig(ctx context.Context, path string, mustExist bool, root *cobra.Command, sources map[string]string) (map[string]any, error) {
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
	if errors.Is(err, fs.ErrNotExist) && !mustExist {
		return nil, nil
	}
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
			errs = append(errs, fmt.Errorf("%s is not a flag of any command%s", place, DidYouMean(key, known)))
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

// readMapping returns keys and values, in turn, of the one YAML mapping in r.
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
		return nil, fmt.Errorf("line %d: want flag names and values, as in trust-domain: prod.example", top.Line)
	}
	return top.Content, nil
}

// nodeValue returns a scalar as the string that was written, a list of
// scalars as a []string.
func nodeValue(node *yaml.Node) (any, error) {
	node = resolve(node)
	if isScalar(node) {
		return node.Value, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, errors.New("wants a value or a list of values")
	}
	list := []string{}
	for _, item := range node.Content {
		value := resolve(item)
		if !isScalar(value) {
			return nil, fmt.Errorf("wants plain values in its list, line %d has another", item.Line)
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

// environment returns the values that the environment has for flags, as
// readConfig returns those of the file.
func environment(env *Env, flags *pflag.FlagSet, sources map[string]string) map[string]any {
	values := map[string]any{}
	flags.VisitAll(func(f *pflag.Flag) {
		value, _ := env.LookupEnv(envName(f.Name))
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

// plainer says what a flag of an ordinary type wants, where the error of the
// flags package names a function of strconv.
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

// flagNames returns the names of the flags of cmd and all commands below it
// that a configuration file may set.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	note := func(f *pflag.Flag) {
		if f.Name != helpFlag && f.Name != configFlag {
			names = append(names, f.Name)
		}
	}
	cmd.LocalFlags().VisitAll(note)
	for _, sub := range cmd.Commands() {
		names = append(names, flagNames(sub)...)
	}
	return names
}
