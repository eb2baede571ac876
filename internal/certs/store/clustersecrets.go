package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// CACerts is the name of the Secret with the CA of a cluster.
const CACerts = "cacerts"

// SelfSignedSecret is the name of the Secret in which Istio keeps its self-signed CA.
const SelfSignedSecret = "istio-ca-secret"

// fieldManager owns the fields that this package writes.
const fieldManager = "meshctl"

// ClusterSecrets reads and writes the CA Secrets in one namespace of a cluster. It may
// be used concurrently.
type ClusterSecrets struct {
	// ID is the name of the cluster in the mesh, Context its context in the
	// kubeconfig.
	ID        mesh.ClusterID
	Context   string
	Namespace string
	core      *kube.Client
}

// Connect makes the client of a cluster. It sends no request yet.
func Connect(id mesh.ClusterID, context, namespace string, api *rest.Config) (*ClusterSecrets, error) {
	core, err := kube.NewClient(api)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", context, err)
	}
	return &ClusterSecrets{ID: id, Context: context, Namespace: namespace, core: core}, nil
}

// Names returns the names of the Secrets of the namespace.
func (c *ClusterSecrets) Names(ctx context.Context) ([]string, error) {
	return c.core.Names(ctx, "secrets", c.Namespace)
}

// Place returns the name of a Secret for people.
func (c *ClusterSecrets) Place(name string) string {
	return fmt.Sprintf("%s: Secret %s/%s", c.Context, c.Namespace, name)
}

// Absent returns the error for a missing CA Secret. It names the command that writes one.
func (c *ClusterSecrets) Absent(name string) error {
	entry := c.Context
	if string(c.ID) != entry {
		entry = string(c.ID) + "=" + entry
	}
	return fmt.Errorf("%s: not found; make it with: %s", c.Place(name), WriteCommand(name, c.Namespace, entry))
}

// WriteCommand returns the command that writes the CA Secrets of clusters. contexts
// are entries of --context.
func WriteCommand(name, namespace string, contexts ...string) string {
	command := "meshctl certs cacerts DIR --apply --context " + output.ShellWord(strings.Join(contexts, ","))
	if name != CACerts {
		command += " --name " + output.ShellWord(name)
	}
	if namespace != mesh.DefaultSystemNamespace {
		command += " --namespace " + output.ShellWord(namespace)
	}
	return command
}

// Get returns a Secret, or nil if it does not exist.
func (c *ClusterSecrets) Get(ctx context.Context, name string) (*corev1.Secret, error) {
	found, err := c.core.Secrets(c.Namespace).Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.Place(name), err)
	}
	return found, nil
}

// Write creates a Secret with the data or, if have is not nil, replaces the data
// of have. Labels and annotations stay. It fails if have is no longer the current
// version. With dryRun the API server checks the request and stores nothing.
func (c *ClusterSecrets) Write(ctx context.Context, name string, have *corev1.Secret, data map[string][]byte, dryRun bool) (*corev1.Secret, error) {
	var dry []string
	if dryRun {
		dry = []string{metav1.DryRunAll}
	}
	api := c.core.Secrets(c.Namespace)
	var next *corev1.Secret
	var err error
	if have == nil {
		next, err = api.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace}, Type: corev1.SecretTypeOpaque, Data: data,
		}, metav1.CreateOptions{FieldManager: fieldManager, DryRun: dry})
	} else {
		next = have.DeepCopy() // with its resource version
		next.Data = data
		next, err = api.Update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager, DryRun: dry})
	}
	return next, c.writeError(name, have != nil, err)
}

// Delete deletes a Secret unless it changed since it was read. A Secret that no
// longer exists is no error.
func (c *ClusterSecrets) Delete(ctx context.Context, have *corev1.Secret) error {
	err := c.core.Secrets(c.Namespace).Delete(ctx, have.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{ResourceVersion: &have.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return c.writeError(have.Name, true, err)
}

// writeError explains why writing a Secret failed. exists reports whether the
// Secret existed when it was read.
func (c *ClusterSecrets) writeError(name string, exists bool, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), exists && apierrors.IsNotFound(err):
		return fmt.Errorf("%s: it was changed at the same time; look at it and try again", c.Place(name))
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w; make the namespace first", c.Place(name), err)
	}
	return fmt.Errorf("%s: %w", c.Place(name), err)
}

// Objects returns objects with certificates or tokens as a List in JSON: the named
// Secrets, which must exist, or without names the CA Secrets, the remote secrets and
// the ConfigMap with the roots.
func (c *ClusterSecrets) Objects(ctx context.Context, names ...string) ([]byte, error) {
	items, err := c.objects(ctx, names...)
	if err != nil {
		return nil, err
	}
	return listOf(items)
}

func (c *ClusterSecrets) objects(ctx context.Context, names ...string) ([]any, error) {
	all := len(names) == 0
	if all {
		names = []string{CACerts, SelfSignedSecret}
	}
	var items []any
	for _, name := range names {
		found, err := c.Get(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case found != nil:
			items = append(items, secretItem(found))
		case !all:
			return nil, fmt.Errorf("%s: not found", c.Place(name))
		}
	}
	if all {
		more, err := c.remoteAndRoots(ctx)
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	return items, nil
}

// AllObjects returns the objects of Objects without names, and the Secrets that the Gateways of the
// cluster name, in all namespaces. unread has the reasons why some of these were not read.
func (c *ClusterSecrets) AllObjects(ctx context.Context) (data []byte, unread []error, err error) {
	own, err := c.objects(ctx)
	if err != nil {
		return nil, nil, err
	}
	credentials, unread, err := c.gatewayCredentials(ctx)
	if err != nil {
		return nil, nil, err
	}
	data, err = listOf(append(own, credentials...))
	return data, unread, err
}

func listOf(items []any) ([]byte, error) {
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

// CA returns the CA of the cluster, or nil if the cluster has no CA Secret. Its Signer
// is nil if the Secret has no readable certificate.
func (c *ClusterSecrets) CA(ctx context.Context) (*verify.ClusterCA, error) {
	for _, name := range []string{CACerts, SelfSignedSecret} {
		found, err := c.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		if found == nil {
			continue
		}
		ca := &verify.ClusterCA{Place: c.Place(name)}
		ca.Signer, ca.Chain, ca.Roots = FromSecret("", "", found.Data).Certificates()
		return ca, nil
	}
	return nil, nil
}

func (c *ClusterSecrets) remoteAndRoots(ctx context.Context) (items []any, err error) {
	remote, err := c.core.Secrets(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: remotesecret.Label + "=true"})
	if err != nil {
		return nil, fmt.Errorf("%s: remote secrets of %s: %w", c.Context, c.Namespace, err)
	}
	for i := range remote.Items {
		items = append(items, secretItem(&remote.Items[i]))
	}
	roots, err := c.core.ConfigMaps(c.Namespace).Get(ctx, rootConfigMap)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("%s: ConfigMap %s/%s: %w", c.Context, c.Namespace, rootConfigMap, err)
	default:
		items = append(items, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(&roots.ObjectMeta), "data": roots.Data,
		})
	}
	return items, nil
}

// rootConfigMap holds the roots for agents.
const rootConfigMap = "istio-ca-root-cert"

func secretItem(s *corev1.Secret) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": metadata(&s.ObjectMeta), "type": s.Type, "data": s.Data,
	}
}

// metadata returns the fields that package inspect reads.
func metadata(m *metav1.ObjectMeta) map[string]any {
	out := map[string]any{"name": m.Name, "namespace": m.Namespace}
	if value, ok := m.Labels[remotesecret.Label]; ok {
		out["labels"] = map[string]string{remotesecret.Label: value}
	}
	return out
}
