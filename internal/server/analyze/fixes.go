package analyze

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// set returns how to give a field of an object another value: the command for an object of an API, the
// new line of YAML for an object of a file.
func (m *checker) set(o snapshot.Object, field string, value any) string {
	return m.change(o, "replace", field, value)
}

// add is set for a field that may be absent.
func (m *checker) add(o snapshot.Object, field string, value any) string {
	return m.change(o, "add", field, value)
}

func (m *checker) change(o snapshot.Object, op, field string, value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	if o.ReadFrom().File != "" {
		return fmt.Sprintf("set %s: %s", field[strings.LastIndex(field, ".")+1:], text)
	}
	k := o.Key()
	return patchCommand(m.kubectl(k.Cluster, k.Namespace), k, fmt.Sprintf(`{"op":"%s","path":"%s","value":%s}`, op, pointerOf(field), text))
}

// patchCommand returns the command that makes operations of a JSON patch.
func patchCommand(kubectl string, k snapshot.Key, operations ...string) string {
	return fmt.Sprintf("%s patch %s %s --type json -p %s", kubectl, kubectlKind(k.Kind), k.Name, output.ShellWord("["+strings.Join(operations, ",")+"]"))
}

// removal is the operation of a JSON patch that removes a field.
func removal(field string) string {
	return fmt.Sprintf(`{"op":"remove","path":"%s"}`, pointerOf(field))
}

// remove returns how to remove a field of an object. It returns "" for an object of a file.
func (m *checker) remove(o snapshot.Object, field string) string {
	if o.ReadFrom().File != "" {
		return ""
	}
	k := o.Key()
	return patchCommand(m.kubectl(k.Cluster, k.Namespace), k, removal(field))
}

// deletion returns the command that deletes an object of an API, or "".
func (m *checker) deletion(o snapshot.Object) string {
	if o.ReadFrom().File != "" {
		return ""
	}
	k := o.Key()
	return fmt.Sprintf("%s delete %s %s", m.kubectl(k.Cluster, k.Namespace), kubectlKind(k.Kind), k.Name)
}

// correct returns how to correct a wrong name to the known one that is like it. It returns "" if there is
// none, or several.
func (m *checker) correct(o snapshot.Object, field, wrong string, known []string) string {
	return m.correctTo(o, field, nearest(wrong, known))
}

// nearest returns the known name that is like a wrong one, or "" if there is none, or several.
func nearest(wrong string, known []string) string {
	near := output.NearestWord(wrong, known)
	for _, other := range known {
		if other != near && output.EditDistance(wrong, other) <= output.EditDistance(wrong, near) {
			return ""
		}
	}
	return near
}

// partOfField is a name or an index of a field.
var partOfField = regexp.MustCompile(`\[[^\]]*\]|[^.\[\]]+`)

// pointerOf returns the JSON pointer of a field, such as /spec/hosts/0 of spec.hosts[0].
func pointerOf(field string) string {
	var out strings.Builder
	for _, part := range partOfField.FindAllString(field, -1) {
		out.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(strings.Trim(part, "[]")))
	}
	return out.String()
}

// kubectlKind returns the name of a kind in commands of kubectl.
func kubectlKind(kind snapshot.Kind) string {
	switch kind {
	case snapshot.KindGateway:
		return "gateway.networking.istio.io" // Kubernetes has another kind of this name
	case snapshot.KindKubeGateway:
		return "gateway.gateway.networking.k8s.io"
	case snapshot.KindInjector:
		return "mutatingwebhookconfiguration"
	case snapshot.KindMeshSettings, snapshot.KindClusterSettings, snapshot.KindInjectorSettings:
		return "configmap"
	}
	return strings.ToLower(string(kind))
}

// withoutEffect matches the message about a field without effect.
var withoutEffect = regexp.MustCompile(`^(spec[\w.\[\]]+): has no effect`)

// Command returns the command that removes a field without effect, or that opens the object of another
// finding. It returns "" if the object is not known or not in an API. flags are those of commands for its
// cluster.
func (f *Finding) Command(flags string) string {
	k := f.Object
	if k.Name == "" || k.Kind == "" || f.Place.File != "" {
		return ""
	}
	out := strings.TrimSpace("kubectl " + flags)
	if k.Namespace != "" {
		out += " -n " + k.Namespace
	}
	if field := withoutEffect.FindStringSubmatch(f.Message); field != nil && f.Code == codes.NoEffect {
		return patchCommand(out, k, removal(field[1]))
	}
	return out + " edit " + kubectlKind(k.Kind) + " " + k.Name
}
