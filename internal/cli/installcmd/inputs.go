package installcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/install/apply"
)

// inputs are what the values of an installation come from. The installation keeps them in a
// ConfigMap, from which an upgrade starts.
type inputs struct {
	Files []inputFile         `json:"files,omitempty"`
	Set   []string            `json:"set,omitempty"`
	Flags map[string][]string `json:"flags,omitempty"` // their values, by their names
}

type inputFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// maxInputs bounds the text of inputs, in bytes: etcd stores objects of at most 1.5 MB.
const maxInputs = 1 << 20

// read returns the inputs of the command line.
func (o *valueFlags) read(env *cli.Env) (*inputs, error) {
	in := &inputs{Set: o.sets, Flags: map[string][]string{}}
	var errs []error
	for _, path := range o.files {
		name, data, err := cli.ReadInput(env, path, maxValues)
		in.Files, errs = append(in.Files, inputFile{name, string(data)}), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	o.remembered.VisitAll(func(flag *pflag.Flag) {
		switch list, ok := flag.Value.(pflag.SliceValue); {
		case !flag.Changed:
		case ok:
			in.Flags[flag.Name] = list.GetSlice()
		default:
			in.Flags[flag.Name] = []string{flag.Value.String()}
		}
	})
	return in, nil
}

// over returns the inputs with those of an earlier run where they have none: other files
// replace all earlier files, further --set follow the earlier ones.
func (in *inputs) over(earlier *inputs) *inputs {
	out := &inputs{Files: in.Files, Set: slices.Concat(earlier.Set, in.Set), Flags: maps.Clone(earlier.Flags)}
	if len(out.Files) == 0 {
		out.Files = earlier.Files
	}
	if out.Flags == nil {
		out.Flags = map[string][]string{}
	}
	maps.Copy(out.Flags, in.Flags)
	return out
}

// give sets the flags that the command line does not have.
func (in *inputs) give(f *pflag.FlagSet) error {
	for _, name := range slices.Sorted(maps.Keys(in.Flags)) {
		flag := f.Lookup(name)
		if flag == nil {
			return fmt.Errorf("the installation was made with --%s, which this version does not have: run meshctl install with all flags", name)
		}
		if flag.Changed {
			continue
		}
		values := in.Flags[name]
		var err error
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			err = list.Replace(values)
		} else {
			err = flag.Value.Set(strings.Join(values, ","))
		}
		if err != nil {
			return fmt.Errorf("the installation was made with --%s=%s: %w", name, strings.Join(values, ","), err)
		}
		flag.Changed = true
	}
	return nil
}

// String returns the inputs as flags of a command line.
func (in *inputs) String() string {
	var words []string
	for _, f := range in.Files {
		words = append(words, "-f "+f.Name)
	}
	for _, s := range in.Set {
		words = append(words, "--set "+s)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Flags)) {
		words = append(words, "--"+name+"="+strings.Join(in.Flags[name], ","))
	}
	if len(words) == 0 {
		return "no flags"
	}
	return strings.Join(words, " ")
}

// text returns the text of the ConfigMap.
func (in *inputs) text() (string, error) {
	text, err := yaml.Marshal(in)
	if err == nil && len(text) > maxInputs {
		err = cli.Usagef("the files of values have more than %d bytes together", maxInputs)
	}
	return string(text), err
}

// target returns the name of the installation that the inputs make.
func (in *inputs) target(revision string) (string, error) {
	v := install.Default("")
	var errs []error
	for _, f := range in.Files {
		_, err := v.Read(f.Name, []byte(f.Text))
		errs = append(errs, err)
	}
	for _, s := range in.Set {
		_, err := v.Set(s)
		errs = append(errs, err)
	}
	if revision != "" {
		v.Revision = revision
	}
	return v.Installation(), errors.Join(errs...)
}

// earlierInputs returns the inputs of the installation that the command line means, and the
// name of the installation.
func earlierInputs(ctx context.Context, c *apply.Cluster, namespace string, in *inputs, revision string) (string, *inputs, error) {
	target, err := in.target(revision)
	if err != nil {
		return "", nil, cli.Usagef("%w", err)
	}
	all, err := c.API.ListAny(ctx, corev1.SchemeGroupVersion.WithKind("ConfigMap"), namespace, install.LabelInstallation, 0)
	if err != nil {
		return "", nil, fmt.Errorf("%s: list ConfigMaps in %s: %w", c.Name, namespace, err)
	}
	kept := map[string]string{}
	for i := range all {
		if name := all[i].GetLabels()[install.LabelInstallation]; all[i].GetName() == install.InputsName(name) {
			kept[name], _, _ = unstructured.NestedString(all[i].Object, "data", install.InputsKey)
		}
	}
	names := slices.Sorted(maps.Keys(kept))
	if _, ok := kept[target]; !ok && len(names) == 1 && len(in.Files)+len(in.Set) == 0 && revision == "" {
		target = names[0]
	}
	text, ok := kept[target]
	if !ok {
		others := ""
		if len(names) > 0 {
			others = ", only those of " + strings.Join(names, ", ")
		}
		return "", nil, fmt.Errorf("%s: namespace %s has no values of installation %s%s: make it, or keep its values from now on, with meshctl install and all flags",
			c.Name, namespace, target, others)
	}
	earlier := &inputs{}
	if err := yaml.UnmarshalStrict([]byte(text), earlier); err != nil {
		return "", nil, fmt.Errorf("%s: ConfigMap %s/%s: %w", c.Name, namespace, install.InputsName(target), err)
	}
	return target, earlier, nil
}
