package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
)

// codecs holds the codecs of the kinds that Client knows.
type codecs struct {
	objects    runtime.NegotiatedSerializer
	parameters runtime.ParameterCodec
}

// knownCodecs returns the codecs of all clients.
var knownCodecs = sync.OnceValues(func() (codecs, error) {
	scheme := runtime.NewScheme()
	groups := runtime.NewSchemeBuilder(authenticationv1.AddToScheme, authorizationv1.AddToScheme, coordinationv1.AddToScheme,
		corev1.AddToScheme, discoveryv1.AddToScheme, rbacv1.AddToScheme)
	err := groups.AddToScheme(scheme)
	return codecs{serializer.NewCodecFactory(scheme).WithoutConversion(), runtime.NewParameterCodec(scheme)}, err
})

// Client makes typed requests to one API server, at the rate that the rest.Config
// allows. It may be used concurrently. It has only the kinds that meshctl uses:
// k8s.io/client-go/kubernetes links every kind of Kubernetes, which costs 20 MB of
// binary and 7 MB of memory.
type Client struct {
	rest       rest.Interface
	http       *http.Client
	parameters runtime.ParameterCodec
}

// NewClient returns a client. It makes no request. Clients of the same config share
// their connections.
func NewClient(config *rest.Config) (*Client, error) {
	c, err := newClient(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return c, nil
}

// NewBoundedClient returns a client whose responses have at most most bytes. Its caller
// bounds the rate of the requests.
func NewBoundedClient(config *rest.Config, most int64) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return dial.Bounded(next, most) })
	return NewClient(config)
}

func newClient(config *rest.Config) (*Client, error) {
	codecs, err := knownCodecs()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	use := *config
	use.APIPath, use.GroupVersion, use.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, codecs.objects
	if use.UserAgent == "" {
		use.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	made, err := rest.RESTClientForConfigAndClient(&use, client)
	if err != nil {
		return nil, err
	}
	return &Client{made, client, codecs.parameters}, nil
}

// Close closes the connections that no request uses. It may be called on a nil Client.
func (c *Client) Close() {
	if c != nil {
		CloseIdle(c.http.Transport)
	}
}

// Get begins a request for something other than an object, such as the keys of tokens.
// The caller sets the absolute path.
func (c *Client) Get() *rest.Request { return c.rest.Get() }

// Patch begins a patch of an object of another kind. The caller sets the absolute path.
func (c *Client) Patch(how types.PatchType) *rest.Request { return c.rest.Patch(how) }

// Apply writes an object by server-side apply, also over the fields of other managers.
// Its TypeMeta must be set.
func (c *Client) Apply(ctx context.Context, o Object, manager string) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return c.one(http.MethodPatch, o).SetHeader("Content-Type", string(types.ApplyPatchType)).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager, Force: new(true)}, c.parameters).Body(body).Do(ctx).Error()
}

// Delete deletes an object. Its TypeMeta must be set.
func (c *Client) Delete(ctx context.Context, o Object) error {
	return c.one(http.MethodDelete, o).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
}

// DeleteUnchanged deletes an object if it still has its resourceVersion.
func (c *Client) DeleteUnchanged(ctx context.Context, o Object) error {
	options, err := json.Marshal(&metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{ResourceVersion: new(o.GetResourceVersion())},
	})
	if err != nil {
		return err
	}
	return c.one(http.MethodDelete, o).SetHeader("Content-Type", jsonType).Body(options).Do(ctx).Error()
}

// one begins a request for one object, by its kind and name.
func (c *Client) one(verb string, o Object) *rest.Request {
	kind := ResourceOf(o.GetObjectKind().GroupVersionKind())
	return c.request(verb, kind.GroupVersion(), kind.Resource, o.GetNamespace()).Name(o.GetName())
}

// ResourceOf guesses the resource of a kind, without a request.
func ResourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	resource, singular := meta.UnsafeGuessKindToResource(kind)
	if strings.HasSuffix(singular.Resource, "way") {
		resource.Resource = singular.Resource + "s" // gateways, unlike policies
	}
	return resource
}

// maxNames bounds the names that Names returns.
const maxNames = 1000

// metadataPage is the number of objects in a response to EachMetadata.
const metadataPage = 500

// EachMetadata calls f with the metadata of each object of a resource in the cluster that the options
// select. It calls it for none if the resource is not installed.
func (c *Client) EachMetadata(
	ctx context.Context, resource schema.GroupVersionResource, options metav1.ListOptions, f func(*metav1.PartialObjectMetadata),
) error {
	options.Limit = metadataPage
	for {
		text, err := Raw(c.request(http.MethodGet, resource.GroupVersion(), resource.Resource, "").
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
			VersionedParams(&options, c.parameters).Do(ctx))
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("list the metadata of %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// Names returns the names of the objects of a core resource, at most maxNames, in a
// namespace or, with "", in the cluster. The API server sends only metadata.
func (c *Client) Names(ctx context.Context, resource, namespace string) ([]string, error) {
	text, err := Raw(c.rest.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		Param("limit", strconv.Itoa(maxNames)).Do(ctx))
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list the names of %s: %w", resource, err)
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, nil
}

// Secrets of a namespace; of all with "".
func (c *Client) Secrets(namespace string) Objects[*corev1.Secret, *corev1.SecretList] {
	return ObjectsOf[corev1.Secret, corev1.SecretList](c, corev1.SchemeGroupVersion, "secrets", namespace)
}

// ConfigMaps of a namespace; of all with "".
func (c *Client) ConfigMaps(namespace string) Objects[*corev1.ConfigMap, *corev1.ConfigMapList] {
	return ObjectsOf[corev1.ConfigMap, corev1.ConfigMapList](c, corev1.SchemeGroupVersion, "configmaps", namespace)
}

// Namespaces of the cluster.
func (c *Client) Namespaces() Objects[*corev1.Namespace, *corev1.NamespaceList] {
	return ObjectsOf[corev1.Namespace, corev1.NamespaceList](c, corev1.SchemeGroupVersion, "namespaces", "")
}

// Nodes of the cluster.
func (c *Client) Nodes() Objects[*corev1.Node, *corev1.NodeList] {
	return ObjectsOf[corev1.Node, corev1.NodeList](c, corev1.SchemeGroupVersion, "nodes", "")
}

// Pods of a namespace; of all with "".
func (c *Client) Pods(namespace string) Objects[*corev1.Pod, *corev1.PodList] {
	return ObjectsOf[corev1.Pod, corev1.PodList](c, corev1.SchemeGroupVersion, "pods", namespace)
}

// Services of a namespace; of all with "".
func (c *Client) Services(namespace string) Objects[*corev1.Service, *corev1.ServiceList] {
	return ObjectsOf[corev1.Service, corev1.ServiceList](c, corev1.SchemeGroupVersion, "services", namespace)
}

// ServiceAccounts of a namespace; of all with "".
func (c *Client) ServiceAccounts(namespace string) Objects[*corev1.ServiceAccount, *corev1.ServiceAccountList] {
	return ObjectsOf[corev1.ServiceAccount, corev1.ServiceAccountList](c, corev1.SchemeGroupVersion, "serviceaccounts", namespace)
}

// EndpointSlices of a namespace; of all with "".
func (c *Client) EndpointSlices(namespace string) Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
	return ObjectsOf[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c, discoveryv1.SchemeGroupVersion, "endpointslices", namespace)
}

// Leases of a namespace; of all with "".
func (c *Client) Leases(namespace string) Objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
	return ObjectsOf[coordinationv1.Lease, coordinationv1.LeaseList](c, coordinationv1.SchemeGroupVersion, "leases", namespace)
}

// RoleBindings of a namespace; of all with "".
func (c *Client) RoleBindings(namespace string) Objects[*rbacv1.RoleBinding, *rbacv1.RoleBindingList] {
	return ObjectsOf[rbacv1.RoleBinding, rbacv1.RoleBindingList](c, rbacv1.SchemeGroupVersion, "rolebindings", namespace)
}

// CreateToken requests a token of a service account.
func (c *Client) CreateToken(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	answer := new(authenticationv1.TokenRequest)
	r := c.request(http.MethodPost, corev1.SchemeGroupVersion, "serviceaccounts", namespace).Name(account).SubResource("token")
	return answer, r.Body(request).Do(ctx).Into(answer)
}

// ReviewToken asks for the owner of a token.
func (c *Client) ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	answer := new(authenticationv1.TokenReview)
	return answer, c.request(http.MethodPost, authenticationv1.SchemeGroupVersion, "tokenreviews", "").Body(review).Do(ctx).Into(answer)
}

// ReviewAccess asks whether a user has a right.
func (c *Client) ReviewAccess(
	ctx context.Context, review *authorizationv1.SubjectAccessReview,
) (*authorizationv1.SubjectAccessReview, error) {
	answer := new(authorizationv1.SubjectAccessReview)
	return answer, c.request(http.MethodPost, authorizationv1.SchemeGroupVersion, "subjectaccessreviews", "").Body(review).Do(ctx).Into(answer)
}

// MayListSecrets asks whether a service account may list the Secrets of its namespace. Control planes give
// private keys to such accounts only.
func (c *Client) MayListSecrets(ctx context.Context, namespace, account string) (authorizationv1.SubjectAccessReviewStatus, error) {
	answer, err := c.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + namespace + ":" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "list", Version: "v1", Resource: "secrets",
			},
		},
	})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	return answer.Status, nil
}

// ReviewOwnAccess asks whether the client itself has a right.
func (c *Client) ReviewOwnAccess(
	ctx context.Context, review *authorizationv1.SelfSubjectAccessReview,
) (*authorizationv1.SelfSubjectAccessReview, error) {
	answer := new(authorizationv1.SelfSubjectAccessReview)
	return answer, c.request(http.MethodPost, authorizationv1.SchemeGroupVersion, "selfsubjectaccessreviews", "").Body(review).Do(ctx).Into(answer)
}

// request begins a request in protobuf for objects of a kind.
func (c *Client) request(verb string, group schema.GroupVersion, resource, namespace string) *rest.Request {
	root := "/api"
	if group.Group != "" {
		root = path.Join("/apis", group.Group)
	}
	return c.rest.Verb(verb).UseProtobufAsDefault().AbsPath(root, group.Version).NamespaceIfScoped(namespace, namespace != "").Resource(resource)
}

// Object is an object with metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// List is a list of objects.
type List interface {
	runtime.Object
	metav1.ListInterface
}

// Objects makes requests for the objects of kind T, in one namespace or in all. L is the
// type of their lists. Its errors are errors of k8s.io/apimachinery/pkg/api/errors.
type Objects[T Object, L List] struct {
	client              *Client
	group               schema.GroupVersion
	resource, namespace string
	object              func() T
	list                func() L
}

// ObjectsOf returns the Objects of a kind. knownCodecs must have its group.
func ObjectsOf[T, L any, PT interface {
	*T
	Object
}, PL interface {
	*L
	List
}](c *Client, group schema.GroupVersion, resource, namespace string) Objects[PT, PL] {
	return Objects[PT, PL]{c, group, resource, namespace, func() PT { return new(T) }, func() PL { return new(L) }}
}

// all begins a request for the objects.
func (o Objects[T, L]) all(verb string) *rest.Request {
	return o.client.request(verb, o.group, o.resource, o.namespace)
}

func (o Objects[T, L]) one(verb, name string) *rest.Request {
	return o.all(verb).Name(name) // an empty name is an error
}

// do sends the request and returns the object in the response.
func (o Objects[T, L]) do(ctx context.Context, r *rest.Request) (T, error) {
	object := o.object()
	return object, r.Do(ctx).Into(object)
}

// Get returns the object of that name.
func (o Objects[T, L]) Get(ctx context.Context, name string) (T, error) {
	return o.do(ctx, o.one(http.MethodGet, name))
}

// List returns the objects that the options select.
func (o Objects[T, L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	list := o.list()
	return list, o.selected(options).Do(ctx).Into(list)
}

// Watch watches the objects that the options select.
func (o Objects[T, L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return o.selected(options).Watch(ctx)
}

func (o Objects[T, L]) selected(options metav1.ListOptions) *rest.Request {
	var timeout time.Duration
	if options.TimeoutSeconds != nil {
		timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return o.all(http.MethodGet).VersionedParams(&options, o.client.parameters).Timeout(timeout)
}

// Create creates an object and returns the result.
func (o Objects[T, L]) Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error) {
	return o.do(ctx, o.all(http.MethodPost).VersionedParams(&options, o.client.parameters).Body(object))
}

// Update replaces an object, unless it has changed since the resource version.
func (o Objects[T, L]) Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error) {
	return o.do(ctx, o.one(http.MethodPut, object.GetName()).VersionedParams(&options, o.client.parameters).Body(object))
}

// Patch applies a patch of that type to an object.
func (o Objects[T, L]) Patch(
	ctx context.Context, name string, how types.PatchType, patch []byte, options metav1.PatchOptions,
) (T, error) {
	r := o.one(http.MethodPatch, name).SetHeader("Content-Type", string(how))
	return o.do(ctx, r.VersionedParams(&options, o.client.parameters).Body(patch))
}

// Delete deletes the object of that name.
func (o Objects[T, L]) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return o.one(http.MethodDelete, name).Body(&options).Do(ctx).Error()
}
