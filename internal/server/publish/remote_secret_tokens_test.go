package publish

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// TestTokensOfRemoteSecretsAreRenewed: expiring tokens are renewed in time. One API
// server is both clusters.
func TestTokensOfRemoteSecretsAreRenewed(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := testkube.Start(t)
	a := apiOf(t, c)
	system, readers := c.Namespace(t, "system"), c.Namespace(t, "readers")
	first, bound := remoteSecret(t, c, system, readers)
	if _, err := a.Secrets(system).Create(t.Context(), first, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A token that is not bound to its own Secret is not renewed.
	forever := first.DeepCopy()
	forever.Name, forever.Annotations = "forever", nil
	if _, err := a.Secrets(system).Create(t.Context(), forever, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	var ahead atomic.Int64 // of the clock
	var mu sync.Mutex
	written := make(map[string]int)
	tokens := NewTokens(TokensConfig{
		API: c.Config(), Namespace: system, Interval: 50 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
		Log: slog.New(slog.DiscardHandler),
		Reach: func(c *remotesecret.Cluster) (*rest.Config, error) {
			return kube.Remote(c, kube.RemoteOptions{Options: remotesecret.Options{Now: time.Now()}})
		},
		Written: func(id mesh.ClusterID, result string) {
			mu.Lock()
			defer mu.Unlock()
			written[string(id)+" "+result]++
			ahead.Store(0)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tokens.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if left := tokens.Status(); len(left) != 0 {
			t.Errorf("the status of a replica that does not write: %+v", left)
		}
	}()
	status := func(ok func(TokenStatus) bool) func() error {
		return func() error {
			if all := tokens.Status(); len(all) != 1 || all[0].Cluster != "west" || !ok(all[0]) {
				return fmt.Errorf("status %+v", all)
			}
			return nil
		}
	}
	until(t, "the token is looked at", status(func(s TokenStatus) bool { return s.Problem == "" && !s.Ends.IsZero() }))
	ahead.Store(int64(6 * time.Minute)) // two thirds of ten are later
	until(t, "it is looked at again", status(func(s TokenStatus) bool { return s.Problem == "" }))
	if now := read(t, a, system); now.token != tokenOf(t, first) {
		t.Error("the token was renewed before two thirds of its life")
	}

	ahead.Store(int64(7 * time.Minute))
	var renewed secretNow
	until(t, "the token is renewed", func() error {
		if renewed = read(t, a, system); renewed.token == tokenOf(t, first) {
			return errors.New("still the old one")
		}
		return nil
	})
	if err := renewed.works(t, readers); err != nil {
		t.Errorf("the renewed token: %v", err)
	}
	for key, want := range map[string]string{
		remotesecret.AnnotationCredential: remotesecret.HashToken(renewed.token),
		remotesecret.AnnotationBoundTo:    readers + "/" + bound,
		remotesecret.AnnotationCluster:    "west",
	} {
		if got := renewed.Annotations[key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
	if !bytes.Contains(renewed.Data["west"], []byte(c.Addr())) {
		t.Errorf("the kubeconfig has lost its server:\n%s", renewed.Data["west"])
	}
	mu.Lock()
	if written["west updated"] != 1 || len(written) != 1 {
		t.Errorf("renewals %v, want one", written)
	}
	mu.Unlock()

	// A revoked token cannot be renewed. It is reported and stays.
	if err := a.Secrets(readers).Delete(t.Context(), bound, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(7 * time.Minute))
	until(t, "the failure is told", func() error {
		ahead.Store(int64(7 * time.Minute))
		return status(func(s TokenStatus) bool { return strings.Contains(s.Problem, "request a token of service account") })()
	})
	if now := read(t, a, system); now.token != renewed.token {
		t.Error("the Secret was changed by a failure")
	}
}

// remoteSecret returns a remote secret of cluster west with an expiring token, and the
// name of the Secret that the token is bound to.
func remoteSecret(t *testing.T, c *testkube.Cluster, namespace, readers string) (secret *corev1.Secret, bound string) {
	t.Helper()
	west, err := create.Connect("west", c.Config())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := west.Plan(t.Context(), create.Request{
		Account: create.Account{Namespace: readers, Name: "reader"}, Scope: create.Scope{Style: create.Minimal, Renew: true},
		Create: true, TTL: create.MinTTL, Rand: rand.Reader,
	})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := west.Make(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	secret, err = remotesecret.Build(remotesecret.Spec{
		Cluster: "west", Namespace: namespace, Server: "https://" + c.Addr(), CA: c.CA(),
		Token: issued.Token, Annotations: issued.Annotations(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret, issued.Secret
}

// secretNow is the current remote secret.
type secretNow struct {
	*corev1.Secret
	token string
}

func read(t *testing.T, a testAPI, namespace string) secretNow {
	t.Helper()
	secret, err := a.Secrets(namespace).Get(t.Context(), remotesecret.Name("west"))
	if err != nil {
		t.Fatal(err)
	}
	return secretNow{secret, tokenOf(t, secret)}
}

func tokenOf(t *testing.T, secret *corev1.Secret) string {
	t.Helper()
	clusters := remotesecret.Decode(secret)
	if len(clusters) != 1 || clusters[0].Err != nil {
		t.Fatalf("secret %s: %v", secret.Name, clusters)
	}
	return clusters[0].User.Token
}

// works lists the services of a namespace with the credential in the Secret.
func (s secretNow) works(t *testing.T, namespace string) error {
	access, err := kube.Remote(&remotesecret.Decode(s.Secret)[0], kube.RemoteOptions{
		Options: remotesecret.Options{Now: time.Now()}, Timeout: time.Minute,
	})
	if err != nil {
		return err
	}
	defer kube.Close(access)
	core, err := kube.NewClient(access)
	if err != nil {
		return err
	}
	_, err = core.Services(namespace).List(t.Context(), metav1.ListOptions{})
	return err
}
