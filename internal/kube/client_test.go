package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// TestRequests: an API server receives the expected requests. The tests of the callers
// use real API servers.
func TestRequests(t *testing.T) {
	t.Parallel()
	for want, ask := range map[string]func(context.Context, *Client) error{
		"GET /api/v1/namespaces/ns/secrets/a": func(ctx context.Context, c *Client) error {
			_, err := c.Secrets("ns").Get(ctx, "a")
			return err
		},
		"GET /api/v1/secrets?labelSelector=a%3Db&limit=7": func(ctx context.Context, c *Client) error {
			_, err := c.Secrets("").List(ctx, metav1.ListOptions{LabelSelector: "a=b", Limit: 7})
			return err
		},
		"GET /api/v1/namespaces?fieldSelector=metadata.name%3Da&resourceVersion=3&timeout=9s&timeoutSeconds=9&watch=true": func(ctx context.Context, c *Client) error {
			_, err := c.Namespaces().Watch(ctx, metav1.ListOptions{
				FieldSelector: "metadata.name=a", ResourceVersion: "3", TimeoutSeconds: new(int64(9)),
			})
			return err
		},
		"POST /api/v1/namespaces/ns/configmaps?dryRun=All&fieldManager=m " + protobuf + " v1 ConfigMap": func(ctx context.Context, c *Client) error {
			_, err := c.ConfigMaps("ns").Create(ctx, &corev1.ConfigMap{}, metav1.CreateOptions{FieldManager: "m", DryRun: []string{metav1.DryRunAll}})
			return err
		},
		"PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/a " + protobuf + " coordination.k8s.io/v1 Lease": func(ctx context.Context, c *Client) error {
			_, err := c.Leases("ns").Update(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.UpdateOptions{})
			return err
		},
		"PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/a?fieldManager=m&force=true application/apply-patch+yaml": func(ctx context.Context, c *Client) error {
			return c.Apply(ctx, &rbacv1.ClusterRole{
				TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
			}, "m")
		},
		"DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/ns/rolebindings/a " + protobuf + " v1 DeleteOptions": func(ctx context.Context, c *Client) error {
			return c.Delete(ctx, &rbacv1.RoleBinding{
				TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding"},
				ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"},
			})
		},
		"POST /api/v1/namespaces/ns/serviceaccounts/a/token " + protobuf + " authentication.k8s.io/v1 TokenRequest": func(ctx context.Context, c *Client) error {
			_, err := c.CreateToken(ctx, "ns", "a", &authenticationv1.TokenRequest{})
			return err
		},
		"POST /apis/authentication.k8s.io/v1/tokenreviews " + protobuf + " authentication.k8s.io/v1 TokenReview": func(ctx context.Context, c *Client) error {
			_, err := c.ReviewToken(ctx, &authenticationv1.TokenReview{})
			return err
		},
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews " + protobuf + " authorization.k8s.io/v1 SubjectAccessReview": func(ctx context.Context, c *Client) error {
			_, err := c.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{})
			return err
		},
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews " + protobuf + " authorization.k8s.io/v1 SelfSubjectAccessReview": func(ctx context.Context, c *Client) error {
			_, err := c.ReviewOwnAccess(ctx, &authorizationv1.SelfSubjectAccessReview{})
			return err
		},
		"GET /openid/v1/jwks": func(ctx context.Context, c *Client) error {
			return c.Get().AbsPath("/openid/v1/jwks").Do(ctx).Error()
		},
	} {
		t.Run(strings.Fields(want)[1], func(t *testing.T) {
			t.Parallel()
			got, err := asked(t, func(c *Client) error { return ask(t.Context(), c) })
			if got != want || !apierrors.IsConflict(err) {
				t.Errorf("got  %s, %v\nwant %s and the conflict that was answered", got, err, want)
			}
		})
	}
}

// TestNoName: a request for one object without a name never becomes a request for all.
func TestNoName(t *testing.T) {
	t.Parallel()
	for what, ask := range map[string]func(*Client) error{
		"get":    func(c *Client) error { _, err := c.Secrets("ns").Get(t.Context(), ""); return err },
		"delete": func(c *Client) error { return c.Secrets("ns").Delete(t.Context(), "", metav1.DeleteOptions{}) },
		"update": func(c *Client) error {
			_, err := c.Secrets("ns").Update(t.Context(), &corev1.Secret{}, metav1.UpdateOptions{})
			return err
		},
	} {
		if got, err := asked(t, ask); got != "" || err == nil {
			t.Errorf("%s: asked for %q, error %v", what, got, err)
		}
	}
}

// asked returns the request that an API server received: method, URL, and the type and
// kind of the body. The response is a conflict.
func asked(t *testing.T, ask func(*Client) error) (string, error) {
	t.Helper()
	var got strings.Builder
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(&got, "%s %s", r.Method, r.URL)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if kind := r.Header.Get("Content-Type"); kind != "" && len(body) > 0 {
			got.WriteString(" " + kind)
			if kind == protobuf {
				got.WriteString(" " + sentKind(t, body))
			}
		}
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, protobuf) && strings.HasPrefix(r.URL.Path, "/api") {
			t.Errorf("%s accepts %q", r.URL, accept)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Conflict","code":409}`)
	}))
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	err = ask(c)
	return got.String(), err
}

// sentKind returns the group, version and kind of an object in protobuf.
func sentKind(t *testing.T, body []byte) string {
	t.Helper()
	codecs, err := knownCodecs()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range codecs.objects.SupportedMediaTypes() {
		if info.MediaType == protobuf {
			_, kind, err := info.Serializer.Decode(body, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return kind.GroupVersion().String() + " " + kind.Kind
		}
	}
	t.Fatal("protobuf is not supported")
	return ""
}
