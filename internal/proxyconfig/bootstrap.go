package proxyconfig

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/output"
)

// Bootstrap is the bootstrap of an Envoy.
type Bootstrap struct {
	// Istio is the version of Istio that the proxy reports, IstioProxy the commit of
	// Istio's build of Envoy; empty without one.
	Istio, IstioProxy string
	// Envoy is <version>/<state of the source>/<build>/<TLS library>, such as
	// 1.40.0/Clean/RELEASE/BoringSSL; empty if the dump has none.
	Envoy string
	// Resource is the section as proto JSON.
	Resource BootstrapResource
}

// BootstrapResource is the JSON form of Bootstrap, with redacted secrets.
type BootstrapResource struct {
	Bootstrap   jsontext.Value `json:"bootstrap"`
	LastUpdated jsontext.Value `json:"lastUpdated,omitzero"`
}

var bootstrapSection = section{
	what:    "bootstrap settings",
	typeURL: "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump",
	paths:   map[string][]string{"bootstrap": {}, "last_updated": {}},
	single:  true,
	why:     "a mask left it out",
}

// ReadBootstrap reads the bootstrap of a config dump. It fails without one.
func ReadBootstrap(r io.Reader) (*Bootstrap, error) {
	b := new(Bootstrap)
	err := bootstrapSection.read(r, func(member string, raw jsontext.Value) error {
		if err := b.readVersions(member, raw); err != nil {
			return err
		}
		resource, err := protoJSON(raw, (*bootstrapv3.Bootstrap)(nil))
		if member == "bootstrap" {
			b.Resource.Bootstrap = resource
		} else {
			b.Resource.LastUpdated = resource
		}
		return err
	})
	if err == nil && b.Resource.Bootstrap == nil {
		return nil, errors.New("no bootstrap found")
	}
	return b, err
}

// bootstrapFields are the fields of a bootstrap with versions.
type bootstrapFields struct {
	Node struct {
		Metadata struct {
			Istio      textOrNothing `json:"ISTIO_VERSION"`
			IstioProxy textOrNothing `json:"ISTIO_PROXY_SHA"`
		} `json:"metadata"`
		Version string `json:"user_agent_version,case:ignore"`
		Build   *struct {
			Version struct {
				Major uint32 `json:"major_number,case:ignore"`
				Minor uint32 `json:"minor_number,case:ignore"`
				Patch uint32 `json:"patch"`
			} `json:"version"`
			Metadata struct {
				Label textOrNothing `json:"build.label"`
				State textOrNothing `json:"revision.status"`
				Type  textOrNothing `json:"build.type"`
				TLS   textOrNothing `json:"ssl.version"`
			} `json:"metadata"`
		} `json:"user_agent_build_version,case:ignore"`
	} `json:"node"`
}

// readVersions reads the versions if a member of the section has them.
func (b *Bootstrap) readVersions(member string, raw jsontext.Value) error {
	if member != "bootstrap" {
		return nil
	}
	var fields bootstrapFields
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	node := &fields.Node
	b.Istio, b.Envoy = string(node.Metadata.Istio), node.Version
	sha := string(node.Metadata.IstioProxy) // <name>:<commit>
	b.IstioProxy = sha[strings.LastIndexByte(sha, ':')+1:]
	if node.Build == nil {
		return nil
	}
	b.Envoy = fmt.Sprintf("%d.%d.%d", node.Build.Version.Major, node.Build.Version.Minor, node.Build.Version.Patch)
	build := &node.Build.Metadata
	if build.Label != "" {
		b.Envoy += "-" + string(build.Label)
	}
	for _, part := range []textOrNothing{build.State, build.Type, build.TLS} {
		b.Envoy += "/" + string(cmp.Or(part, "unknown"))
	}
	return nil
}

// BootstrapTable returns the known versions in Istio's lines.
func BootstrapTable(b *Bootstrap) *output.Table {
	t := &output.Table{Header: []string{"", ""}, NoHeader: true, Gap: 1}
	for _, line := range [][]string{
		{"Istio Version:", b.Istio}, {"Istio Proxy Version:", b.IstioProxy}, {"Envoy Version:", b.Envoy},
	} {
		if line[1] != "" {
			t.Rows = append(t.Rows, line)
		}
	}
	return t
}
