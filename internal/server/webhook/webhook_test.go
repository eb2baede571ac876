package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// testHandler returns a handler, and the results that it counts.
func testHandler(t testing.TB) (http.Handler, *[]string) {
	t.Helper()
	injector, err := inject.New(inject.Settings{Cluster: mesh.ClusterID("cluster1")})
	if err != nil {
		t.Fatal(err)
	}
	var results []string
	return Handler(Config{
		Injector:  func() (*inject.Injector, error) { return injector, nil },
		Converter: &source.Converter{Cluster: "cluster1"},
		Findings: func(_ context.Context, o snapshot.Object) []string {
			if o.Key().Name == "found" {
				return []string{"IST0101: a fault"}
			}
			return nil
		},
		FromAPIServer: func(r *http.Request) bool { return !strings.HasPrefix(r.RemoteAddr, "10.") },
		Done:          func(webhook, result string, _ metav1.GroupVersionKind) { results = append(results, webhook+" "+result) },
		Log:           slog.New(slog.DiscardHandler),
	}), &results
}

func post(h http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// review returns an AdmissionReview to create an object.
func review(kind, object string) string {
	return `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u1", "kind": {"version": "v1", "kind": "` + kind +
		`"}, "namespace": "sample", "operation": "CREATE", "object": ` + object + `}}`
}

// answer returns the response of a handler.
func answer(t *testing.T, h http.Handler, path, body string) *admissionv1.AdmissionResponse {
	t.Helper()
	w := post(h, path, body)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
	}
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Response == nil || got.Response.UID != "u1" || got.APIVersion != "admission.k8s.io/v1" {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return got.Response
}

const pod = `{"metadata": {"generateName": "web-", "labels": {"app": "web"}, "tomorrow": 12345678901234567890},
	"spec": {"containers": [{"name": "app", "image": "web:1", "tomorrow": {"x": 1}}], "tomorrow": [1]}}`

// TestInject: the patch makes the pod that the injector makes, and leaves fields that it does
// not know.
func TestInject(t *testing.T) {
	t.Parallel()
	h, results := testHandler(t)
	got := answer(t, h, "/inject/cluster/c2/net/n2/istio_meta_x/a--slash--b", review("Pod", pod))
	if !got.Allowed || got.PatchType == nil || *got.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("response is %+v", got)
	}
	object, err := inject.Decode([]byte(pod))
	if err != nil {
		t.Fatal(err)
	}
	injector, err := inject.New(inject.Settings{Cluster: "cluster1"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := injector.Inject(t.Context(), inject.Pod{
		Object: object, Namespace: "sample", Cluster: "c2", Network: "n2", Metadata: map[string]string{"ISTIO_META_X": "a/b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(encoded(t, want.Object), encoded(t, patched(t, object, got.Patch))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, text := range []string{"12345678901234567890", `"c2"`, `"n2"`, `"a/b"`, "istio-proxy"} {
		if !strings.Contains(encoded(t, want.Object), text) {
			t.Errorf("the pod lacks %s", text)
		}
	}
	if !slices.Equal(*results, []string{"inject injected"}) {
		t.Errorf("results are %q", *results)
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// patched applies the operations add and remove of a JSON patch.
func patched(t *testing.T, object map[string]any, patch []byte) map[string]any {
	t.Helper()
	var operations []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		parts := strings.Split(o.Path, "/")
		at := object
		for _, name := range parts[1 : len(parts)-1] {
			at, _ = at[name].(map[string]any)
		}
		if o.Op == "remove" {
			delete(at, parts[len(parts)-1])
			continue
		}
		made, err := inject.Decode([]byte(`{"v": ` + string(o.Value) + `}`))
		if err != nil || o.Op != "add" || at == nil {
			t.Fatalf("operation %s %s: %v", o.Op, o.Path, err)
		}
		at[parts[len(parts)-1]] = made["v"]
	}
	return object
}

// TestDecisions: pods that stay as they are, refusals and requests that cannot be decided.
func TestDecisions(t *testing.T) {
	t.Parallel()
	h, results := testHandler(t)
	with := func(meta, spec string) string {
		return review("Pod", `{"metadata": {`+meta+`}, "spec": {`+spec+`"containers": [{"name": "app"}]}}`)
	}
	for _, c := range []struct {
		name, path, body string
		allowed          bool
		says, result     string // a part of a warning or of the message
	}{
		{"not a pod", "/inject", review("Deployment", "{}"), true, "", "inject skipped"},
		{"not wanted", "/inject", with(`"labels": {"sidecar.istio.io/inject": "false"}`, ""), true, "", "inject skipped"},
		{"network of the node", "/inject", with(`"labels": {"sidecar.istio.io/inject": "true"}`, `"hostNetwork": true, `), true, "the pod is not injected: spec.hostNetwork is true", "inject skipped"},
		{"wrong annotation", "/inject", with(`"annotations": {"sidecar.istio.io/proxyCPU": "x"}`, ""), false, `annotation sidecar.istio.io/proxyCPU: "x" is not an amount`, "inject refused"},
		{"annotation without effect", "/inject", with(`"annotations": {"sidecar.istio.io/agentLogLevel": "x"}`, ""), true, "agentLogLevel has no effect", "inject injected"},
		{"valid", "/validate", review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"selector": {"a": "b"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`), true, "", "validate accepted"},
		{"fault with other objects", "/validate", review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "found", "namespace": "sample"}, "spec": {"selector": {"a": "b"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`), true, "IST0101: a fault", "validate accepted"},
		{"invalid", "/validate", review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"servers": [{"port": {"number": 99999999, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`), false, "spec.servers[0].port", "validate refused"},
		{"several mistakes", "/validate", review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"selector": {"a": "*"}, "servers": [{"port": {"number": 0, "name": "http", "protocol": "HTTP"}}]}}`), false, `Gateway: spec.selector[a]: wildcards and empty names are not allowed; spec.servers[0].port.number: 0 is not a port: want 1 to 65535; spec.servers[0].hosts: is empty: use "*" for every host`, "validate refused"},
		{"unknown field", "/validate", review("Gateway", `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"selector": {"a": "b"}, "nosuch": 1, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`), true, "nosuch", "validate accepted"},
		{"unknown value in a policy", "/validate", review("PeerAuthentication", `{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "p", "namespace": "sample"}, "spec": {"mtls": {"mode": "STRICTLY"}}}`), false, `spec.mtls.mode: "STRICTLY" is none of`, "validate refused"},
		{"another API", "/validate", review("Gateway", `{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "s", "namespace": "sample"}, "data": {"tls.crt": "eA==", "tls.key": "eA=="}}`), true, "", "validate skipped"},
		{"another kind", "/validate", review("Thing", `{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}`), true, "", "validate skipped"},
	} {
		*results = nil
		got := answer(t, h, c.path, c.body)
		text := strings.Join(got.Warnings, "\n")
		if got.Result != nil {
			text += got.Result.Message
		}
		if got.Allowed != c.allowed || !strings.Contains(text, c.says) || c.says == "" && text != "" || !slices.Equal(*results, []string{c.result}) {
			t.Errorf("%s: allowed %v, %q, %q", c.name, got.Allowed, text, *results)
		}
	}
	for _, c := range []struct {
		name, path, body string
		status           int
	}{
		{"no JSON", "/inject", "x", http.StatusBadRequest},
		{"another version", "/inject", strings.Replace(with("", ""), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), http.StatusBadRequest},
		{"no request", "/inject", `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}`, http.StatusBadRequest},
		{"no object", "/inject", review("Pod", "null"), http.StatusInternalServerError},
		{"odd path", "/inject/cluster", with("", ""), http.StatusInternalServerError},
		{"bad cluster", "/inject/cluster/a%20b", with("", ""), http.StatusInternalServerError},
		{"too large", "/inject", review("Pod", `{"x": "`+strings.Repeat("x", maxReview)+`"}`), http.StatusRequestEntityTooLarge},
		{"another path", "/mutate", with("", ""), http.StatusNotFound},
	} {
		if w := post(h, c.path, c.body); w.Code != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/inject", strings.NewReader("{}"))
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("without a content type the status is %d", w.Code)
	}
}

// TestLongReasons: a refusal does not repeat a long name, neither to the caller nor in the log.
func TestLongReasons(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := Handler(Config{
		Converter: &source.Converter{}, Done: func(string, string, metav1.GroupVersionKind) {}, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	gateway := `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "sample"}, "spec": {"selector": {"` + strings.Repeat("x", 100_000) + `*": "a"}}}`
	got := answer(t, h, "/validate", review("Gateway", gateway))
	if got.Allowed || len(got.Result.Message) > 2*maxReason {
		t.Errorf("allowed %t, a message of %d bytes", got.Allowed, len(got.Result.Message))
	}
	if log.Len() == 0 || log.Len() > 2*maxReason {
		t.Errorf("%d bytes in the log", log.Len())
	}
}

// TestNoSettings: without settings no pod is let through.
func TestNoSettings(t *testing.T) {
	t.Parallel()
	h := Handler(Config{
		Injector:  func() (*inject.Injector, error) { return nil, errors.New("ConfigMap is wrong") },
		Converter: &source.Converter{}, Done: func(string, string, metav1.GroupVersionKind) {}, Log: slog.New(slog.DiscardHandler),
	})
	if w := post(h, "/inject", review("Pod", pod)); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "ConfigMap is wrong") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// FuzzReview: every request gets a response to its uid, or an error. A patch leads to a pod
// that stays as it is.
func FuzzReview(f *testing.F) {
	for _, body := range []string{
		review("Pod", pod), review("Pod", "null"), review("Pod", `{"spec": {"containers": [{"name": "istio-proxy", "image": "auto"}]}}`), "{}",
		review("Pod", `{"metadata": {"annotations": {"proxy.istio.io/config": "concurrency: 1"}}, "spec": {"initContainers": [{"name": "i", "restartPolicy": "Always"}], "containers": [{"name": "a", "lifecycle": {"preStop": {"httpGet": {"port": 1}}}}]}}`),
	} {
		f.Add([]byte(body))
	}
	h, _ := testHandler(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/inject", "/validate"} {
			w := post(h, path, string(body))
			if w.Code != http.StatusOK {
				continue
			}
			var asked, got admissionv1.AdmissionReview
			if err := errors.Join(json.Unmarshal(body, &asked), json.Unmarshal(w.Body.Bytes(), &got)); err != nil {
				t.Fatal(err)
			}
			if got.Response.UID != asked.Request.UID {
				t.Fatalf("response to %q, want %q", got.Response.UID, asked.Request.UID)
			}
			if got.Response.Patch == nil {
				continue
			}
			object, err := inject.Decode(asked.Request.Object.Raw)
			if err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(patched(t, object, got.Response.Patch))
			if err != nil {
				t.Fatal(err)
			}
			asked.Request.Object.Raw = again
			text, err := json.Marshal(asked)
			if err != nil {
				t.Fatal(err)
			}
			if w := post(h, path, string(text)); !bytes.Contains(w.Body.Bytes(), []byte(`"allowed":true`)) || bytes.Contains(w.Body.Bytes(), []byte(`"patch"`)) {
				t.Fatalf("the injected pod is not left alone: %s", w.Body)
			}
		}
	})
}
