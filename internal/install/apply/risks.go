package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Risk is a change of an installation that breaks connections of the mesh unless it is meant: a new
// identity of the cluster, or the end of something that traffic needs.
type Risk struct {
	// Flag is the flag of meshctl install that means the change, empty for none.
	Flag string
	Text string
}

// risks returns the risks of writing the steps and of deleting the stale objects.
func risks(steps []step, stale []*unstructured.Unstructured) []Risk {
	was, is := identity{}, identity{}
	for _, s := range steps {
		if s.have != nil && s.keep == "" {
			was.read(s.have)
			is.read(s.want)
		}
	}
	var out []Risk
	for _, part := range identityParts {
		if before, after := was[part.name], is[part.name]; before != "" && before != after {
			out = append(out, Risk{part.flag, fmt.Sprintf("changes %s from %s to %s", part.name, before, cmp.Or(after, "none"))})
		}
	}
	for _, s := range steps {
		if s.from != "" && slices.Contains([]string{"Deployment", mutatingKind.Kind}, s.want.GetKind()) {
			out = append(out, Risk{Text: fmt.Sprintf("takes %s from installation %s", install.Ref(s.want), s.from)})
		}
	}
	for _, o := range stale {
		if slices.Contains([]string{"Deployment", "Service", "Gateway", mutatingKind.Kind}, o.GetKind()) {
			out = append(out, Risk{Text: "deletes " + install.Ref(o)})
		}
	}
	return out
}

// identity has the parts of the identity of a cluster in its mesh, by their names. A part that
// an object has without a value is empty.
type identity map[string]string

// identityParts are the parts and the flags that set them.
var identityParts = []struct{ name, flag string }{
	{cluster, "cluster-id"},
	{meshID, "mesh-id"},
	{network, "network"},
	{trustDomain, ""},
}

const (
	cluster     = "the name of the cluster"
	meshID      = "the mesh ID"
	network     = "the network"
	trustDomain = "the trust domain"
)

// read adds what an object of an installation says of the identity.
func (i identity) read(o *unstructured.Unstructured) {
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	switch name := o.GetName(); {
	case o.GetKind() == "ConfigMap" && name == mesh.MeshConfigMap:
		var config struct {
			TrustDomain string `json:"trustDomain"`
		}
		if yaml.Unmarshal([]byte(data["mesh"]), &config) == nil {
			i[trustDomain] = cmp.Or(config.TrustDomain, mesh.DefaultTrustDomain)
		}
	case o.GetKind() == "ConfigMap" && data[mesh.InjectorKeyValues] != "":
		if values, err := inject.ParseValues(data[mesh.InjectorKeyValues], ""); err == nil {
			i[cluster], i[meshID], i[network] = values.Global.MultiCluster.ClusterName, values.Global.MeshID, values.Global.Network
		}
	case o.GetKind() == mutatingKind.Kind:
		i.readPath(o)
	}
}

// readPath reads the path of an injector in another cluster, such as /inject/cluster/c1/net/n1.
func (i identity) readPath(o *unstructured.Unstructured) {
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if path == "" {
			path, _, _ = unstructured.NestedString(hook, "clientConfig", "url")
		}
		_, path, _ = strings.Cut(path, "/inject/")
		words := strings.Split(path, "/")
		for k := 0; k+1 < len(words); k += 2 {
			switch words[k] {
			case "cluster":
				i[cluster] = words[k+1]
			case "net":
				i[network] = words[k+1]
			}
		}
	}
}
