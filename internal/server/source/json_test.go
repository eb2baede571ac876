package source_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

const peerAuthentication = `{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication",
	"metadata":{"name":"p","namespace":"n","managedFields":[{"manager":"kubectl"}]},"status":{"conditions":[]},"spec":`

// TestDecodeJSON: Istio objects in the JSON of a Kubernetes API are converted.
func TestDecodeJSON(t *testing.T) {
	t.Parallel()
	const gateway = `{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway","metadata":{"name":"p","namespace":"n"},`
	tests := map[string]struct {
		text    string
		spec    string // of the object in a file that is equal; empty is none
		warning string
		err     string
	}{
		"good":            {peerAuthentication + `{"mtls":{"mode":"STRICT"}}}`, "{mtls: {mode: STRICT}}", "", ""},
		"no spec":         {peerAuthentication + `null}`, "{}", "", ""},
		"field not known": {peerAuthentication + `{"mtls":{"mode":"STRICT","of":[{"later":1}]}}}`, "{mtls: {mode: STRICT}}", `spec.mtls.of: unknown field "of"`, ""},
		"value not known": {peerAuthentication + `{"mtls":{"mode":"LATER"}}}`, "{mtls: {mode: STRICT}}", `spec.mtls.mode: "LATER" is none of UNSET, DISABLE, PERMISSIVE, STRICT`, ""},
		"wrong type":      {peerAuthentication + `{"mtls":[]}}`, "", "", "spec.mtls: is a list, want a mapping"},
		"bad metadata":    {`{"kind":"PeerAuthentication","apiVersion":"security.istio.io/v1","metadata":{"name":1}}`, "", "", "is not an object of the Kubernetes API: is a number, want a string"},
		"no JSON":         {`{"kind":`, "", "", "is not an object of the Kubernetes API: unexpected end of JSON input"},
		"no list":         {gateway + `"spec":{"listeners":{}}}`, "", "", "is a mapping, want a list"},
		"other kind":      {`{"apiVersion":"v1","kind":"Job","metadata":{"name":"p"}}`, "", "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &source.Converter{Cluster: "c", RefuseLocal: true}
			got, err := c.DecodeJSON([]byte(tt.text))
			checkFieldError(t, err, tt.err)
			var warnings []string
			for _, w := range got.Warnings {
				warnings = append(warnings, strings.ReplaceAll(w.Error(), "\u00a0", " "))
			}
			if w := strings.Join(warnings, "; "); w != tt.warning {
				t.Errorf("warned of %q, want %q", w, tt.warning)
			}
			if tt.spec == "" {
				if got.Object != nil {
					t.Errorf("delivered %v", got.Object)
				}
				return
			}
			want, err := c.Decode(objects(t, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: 'n'}\nspec: "+tt.spec)[0], snapshot.Place{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.Object, got.Object, protocmp.Transform()); diff != "" || got.Key != want.Key {
				t.Errorf("%s differs from that of a file (-want +got):\n%s", got.Key, diff)
			}
		})
	}
}

func checkFieldError(t *testing.T, err error, want string) {
	t.Helper()
	var text string
	if err != nil {
		if _, ok := errors.AsType[*fields.Error](err); !ok {
			t.Errorf("error of type %T", err)
		}
		text = strings.ReplaceAll(err.Error(), "\u00a0", " ")
	}
	if text != want {
		t.Errorf("error %q, want %q", text, want)
	}
}

// TestWatched: the converter reads every kind that is followed.
func TestWatched(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, r := range source.Watched() {
		name := r.GroupResource() + " " + r.Object
		if seen[name] || r.Without == "" || len(r.Versions) == 0 {
			t.Errorf("%+v is incomplete or twice", r)
		}
		seen[name] = true
		object, namespace := "x", "n"
		if r.Object != "" {
			object, namespace = r.Object, "istio-system"
		}
		if r.Kind == source.KindCustomResource {
			continue
		}
		c := &source.Converter{Cluster: "c"}
		for _, version := range r.Versions {
			if r.Group != "" {
				version = r.Group + "/" + version
			}
			got, _ := c.Decode(objects(t, "apiVersion: "+version+"\nkind: "+r.KubeKind+"\nmetadata: {name: "+object+", namespace: "+namespace+"}\n")[0], snapshot.Place{})
			if got.Skipped != r.Unread || got.Key.Kind != r.Kind {
				t.Errorf("%s of %s is read as %+v", r.KubeKind, version, got)
			}
		}
	}
}
