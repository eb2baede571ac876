package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/kubejson"
)

// unmarshal decodes JSON, and keeps the digits of numbers.
func unmarshal(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// Decode returns the JSON of a pod as an Object of Pod.
func Decode(text []byte) (map[string]any, error) {
	var object map[string]any
	err := unmarshal(text, &object)
	if err == nil && object == nil {
		err = errors.New("want a JSON object")
	}
	return object, err
}

// change is an operation of a JSON patch.
type change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Patch returns the JSON patch that makes the injected pod of a pod. It replaces fields of
// metadata and spec as a whole.
func Patch(pod, injected map[string]any) ([]byte, error) {
	var out []change
	for _, part := range []string{"metadata", "spec"} {
		before, _ := pod[part].(map[string]any)
		after, _ := injected[part].(map[string]any)
		if before == nil && after != nil {
			out = append(out, change{"add", "/" + part, after})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if !reflect.DeepEqual(before[name], after[name]) {
				out = append(out, change{"add", "/" + part + "/" + name, after[name]})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if _, stays := after[name]; !stays {
				out = append(out, change{Op: "remove", Path: "/" + part + "/" + name})
			}
		}
	}
	return json.Marshal(out)
}

// decodeKube decodes the JSON of a part of the Kubernetes API.
func decodeKube(text []byte, into any) error {
	if err := kubejson.Check(text, into); err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// decoded returns a value as decoded JSON.
func decoded[T any](from any) (T, error) {
	var out T
	text, err := json.Marshal(from)
	if err == nil {
		err = unmarshal(text, &out)
	}
	return out, err
}

// listKeys holds the fields that identify the items of a list in a pod: the keys of Kubernetes'
// server-side apply. A list of other fields is replaced. Kubernetes also replaces sysctls, but
// templates and pods must not lose those of each other.
var listKeys = map[string][]string{
	"claims":                    {"name"},
	"containers":                {"name"},
	"env":                       {"name"},
	"ephemeralContainers":       {"name"},
	"evictionResponders":        {"name"},
	"hostAliases":               {"ip"},
	"imagePullSecrets":          {"name"},
	"initContainers":            {"name"},
	"ownerReferences":           {"uid"},
	"ports":                     {"containerPort", "protocol"},
	"resourceClaims":            {"name"},
	"schedulingGates":           {"name"},
	"sysctls":                   {"name"},
	"topologySpreadConstraints": {"topologyKey", "whenUnsatisfiable"},
	"volumeDevices":             {"devicePath"},
	"volumeMounts":              {"mountPath"},
	"volumes":                   {"name"},
}

// keyDefaults holds the values of keys that an item may leave out.
var keyDefaults = map[string]string{"protocol": "TCP"}

// sets are the lists of texts that are merged.
var sets = []string{"finalizers"}

// wholeItems are the lists whose items are replaced, as their fields exclude each other.
var wholeItems = []string{"env", "volumes"}

// handlers are the fields of a probe or a hook, of which one may be set.
var handlers = []string{"exec", "httpGet", "tcpSocket", "grpc", "sleep"}

// merge merges a patch into an object as a strategic merge patch of Kubernetes: mappings are
// merged, lists by the identity of their items, null deletes a field, and "$patch": "delete"
// an item.
func merge(object, patch map[string]any) {
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(object, name)
		case map[string]any:
			own, ok := object[name].(map[string]any)
			if !ok {
				own = map[string]any{}
				object[name] = own
			}
			if slices.ContainsFunc(handlers, func(h string) bool { return v[h] != nil }) {
				for _, h := range handlers {
					if v[h] == nil {
						delete(own, h)
					}
				}
			}
			merge(own, v)
		case []any:
			object[name] = mergeList(name, object[name], v)
		default:
			object[name] = value
		}
	}
}

// mergeList returns a list with the items of a patch. It takes time in proportion to both.
func mergeList(field string, have any, patch []any) []any {
	keys, list := listKeys[field], []any{}
	isSet := slices.Contains(sets, field)
	if own, ok := have.([]any); ok && (len(keys) > 0 || isSet) {
		list = slices.Clone(own)
	}
	places := placesOf(list, keys)
	deleted := make(map[int]bool)
	for _, value := range patch {
		item, ok := value.(map[string]any)
		if !ok {
			if !isSet || !slices.Contains(list, value) {
				list = append(list, value)
			}
			continue
		}
		id := idOf(item, keys)
		at := -1 // the first item of the list with the identity
		if id != "" && len(places[id]) > 0 {
			at = places[id][0]
		}
		switch {
		case item["$patch"] == "delete":
			if at >= 0 {
				deleted[at], places[id] = true, places[id][1:]
			}
		case at < 0:
			made := map[string]any{}
			merge(made, item)
			list = append(list, made)
			if id != "" {
				places[id] = append(places[id], len(list)-1)
			}
		case slices.Contains(wholeItems, field):
			made := map[string]any{} // without nulls
			merge(made, item)
			list[at] = made
		default:
			if same, ok := list[at].(map[string]any); ok {
				merge(same, item)
			}
		}
	}
	kept := list[:0]
	for at, item := range list {
		if !deleted[at] {
			kept = append(kept, item)
		}
	}
	return kept
}

// placesOf returns the places of the items of a list, by their identities.
func placesOf(list []any, keys []string) map[string][]int {
	places := make(map[string][]int, len(list))
	for at, value := range list {
		item, _ := value.(map[string]any)
		if id := idOf(item, keys); id != "" {
			places[id] = append(places[id], at)
		}
	}
	return places
}

// idOf returns the identity of an item: the values of its keys, names or numbers of any type. It is
// empty for an item without one of them.
func idOf(item map[string]any, keys []string) string {
	var id strings.Builder
	for _, key := range keys {
		value := item[key]
		if def := keyDefaults[key]; value == nil && def != "" {
			value = def
		}
		if value == nil {
			return ""
		}
		fmt.Fprintf(&id, "=%v", value)
	}
	return id.String()
}

// containersOf returns the containers of a list of the object, such as initContainers.
func containersOf(object map[string]any, list string) []map[string]any {
	spec, _ := object["spec"].(map[string]any)
	items, _ := spec[list].([]any)
	var out []map[string]any
	for _, item := range items {
		if c, ok := item.(map[string]any); ok {
			out = append(out, c)
		}
	}
	return out
}

func setContainers(object map[string]any, list string, containers []map[string]any) {
	spec, _ := object["spec"].(map[string]any)
	items := make([]any, len(containers))
	for i, c := range containers {
		items[i] = c
	}
	if len(items) > 0 || spec[list] != nil {
		spec[list] = items
	}
}

// The lists of containers of a pod.
const (
	initContainers = "initContainers"
	appContainers  = "containers"
)

// findContainer returns the container of that name, or nil.
func findContainer(object map[string]any, name string) map[string]any {
	for _, list := range []string{initContainers, appContainers} {
		for _, c := range containersOf(object, list) {
			if c["name"] == name {
				return c
			}
		}
	}
	return nil
}

// ownContainer is a container of the injector that the user has described, and its list.
type ownContainer struct {
	list      string
	container map[string]any
}

// takeContainers removes the containers of the injector from the object and returns them.
func takeContainers(object map[string]any) []ownContainer {
	var taken []ownContainer
	for _, list := range []string{initContainers, appContainers} {
		kept := slices.DeleteFunc(containersOf(object, list), func(c map[string]any) bool {
			own := c["name"] == proxyContainer || c["name"] == initContainer
			if own {
				taken = append(taken, ownContainer{list, c})
			}
			return own
		})
		setContainers(object, list, kept)
	}
	return taken
}

// overrideContainers merges the containers of the user into the containers of the
// templates. The image "auto" stands for the image of the template.
func overrideContainers(object map[string]any, own []ownContainer) error {
	for _, o := range own {
		auto := o.container["image"] == "auto"
		made := findContainer(object, fmt.Sprint(o.container["name"]))
		switch {
		case made == nil && auto:
			return fmt.Errorf("container %s: no template gives it an image: name an image in place of auto", o.container["name"])
		case made == nil:
			setContainers(object, o.list, append(containersOf(object, o.list), o.container))
			continue
		case auto:
			delete(o.container, "image")
			if o.container["imagePullPolicy"] == "Always" {
				// The API server's default for an image without a tag.
				delete(o.container, "imagePullPolicy")
			}
		}
		merge(made, o.container)
	}
	return nil
}

// joinProxies makes a template change the proxy of another template, wherever both have it: if one
// of them is a native sidecar, the other becomes the same init container.
func joinProxies(object, patch map[string]any) {
	isProxy := func(c map[string]any) bool { return c["name"] == proxyContainer }
	if !slices.ContainsFunc(append(containersOf(object, initContainers), containersOf(patch, initContainers)...), isProxy) {
		return
	}
	for _, o := range []map[string]any{object, patch} {
		all := containersOf(o, appContainers)
		if at := slices.IndexFunc(all, isProxy); at >= 0 {
			setContainers(o, initContainers, append(containersOf(o, initContainers), all[at]))
			setContainers(o, appContainers, slices.Delete(all, at, at+1))
		}
	}
}

// orderContainers moves the containers of the injector to their places. A native sidecar
// starts before the init containers of the application, which then use the mesh. Otherwise
// connections are redirected last, as there is no proxy before.
func (p *injection) orderContainers(object map[string]any) {
	native := slices.ContainsFunc(containersOf(object, initContainers), func(c map[string]any) bool { return c["name"] == proxyContainer })
	if native {
		moveContainer(object, initContainers, proxyContainer, true)
	}
	moveContainer(object, initContainers, initContainer, native)
	moveContainer(object, appContainers, proxyContainer, p.holds())
}

func moveContainer(object map[string]any, list, name string, first bool) {
	all := containersOf(object, list)
	at := slices.IndexFunc(all, func(c map[string]any) bool { return c["name"] == name })
	if at < 0 {
		return
	}
	moved := all[at]
	all = slices.Delete(all, at, at+1)
	if first {
		all = slices.Insert(all, 0, moved)
	} else {
		all = append(all, moved)
	}
	setContainers(object, list, all)
}
