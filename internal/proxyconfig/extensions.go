package proxyconfig

import (
	"cmp"
	"io"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/output"
)

// Extension is one extension configuration from ECDS.
type Extension struct {
	Name string
	// Type is the message name of the extension's configuration.
	Type string
}

// Extensions are the extension configurations of a config dump.
type Extensions struct {
	// Items are sorted by type, then name.
	Items []Extension
	// Resource is the section as proto JSON, in the order of the dump.
	Resource ExtensionsResource
}

// ExtensionsResource is the JSON form of Extensions.
type ExtensionsResource struct {
	Filters []jsontext.Value `json:"ecdsFilters"`
}

var extensionSection = section{
	what:    "extension configurations",
	typeURL: "type.googleapis.com/envoy.admin.v3.EcdsConfigDump",
	paths:   map[string][]string{"ecds_filters": {}},
}

// ReadExtensions reads the extension configurations of a config dump. A whole dump, which
// has a bootstrap, may lack the section: then Envoy has no extensions.
func ReadExtensions(r io.Reader) (*Extensions, error) {
	e := &Extensions{Resource: ExtensionsResource{Filters: []jsontext.Value{}}}
	whole := &section{typeURL: bootstrapSection.typeURL}
	found, err := readSections(r, extensionSection.what, []*section{&extensionSection, whole}, func(_ *section, _ string, raw jsontext.Value) error {
		resource, err := protoJSON(raw, new(adminv3.EcdsConfigDump_EcdsFilterConfig))
		if err != nil {
			return err
		}
		config, err := readExtension(raw)
		if err != nil {
			return err
		}
		url := config.GetTypedConfig().GetTypeUrl()
		e.Resource.Filters = append(e.Resource.Filters, resource)
		e.Items = append(e.Items, Extension{Name: config.GetName(), Type: url[strings.LastIndexByte(url, '/')+1:]})
		return nil
	})
	if err == nil && !found[&extensionSection] && !found[whole] {
		err = extensionSection.missing()
	}
	slices.SortStableFunc(e.Items, func(a, b Extension) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return e, err
}

// ExtensionTable returns extension configurations in Istio's columns.
func ExtensionTable(items []Extension) *output.Table {
	t := &output.Table{Header: []string{"ECDS NAME", "TYPE"}}
	for _, e := range items {
		t.Rows = append(t.Rows, []string{e.Name, e.Type})
	}
	return t
}
