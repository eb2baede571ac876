package create

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/token"
)

// Style selects the role of a reader.
type Style string

const (
	// Minimal allows only the reads of meshctl's control plane.
	Minimal Style = "minimal"
	// Istio is the role of Istio's own reader, for Istio's control plane.
	Istio Style = "istio"
)

// Scope is the purpose of a reader. It determines the rights of its account.
type Scope struct {
	Style Style
	// Namespaces have readable services; nil means all namespaces.
	Namespaces []string
	// CredentialNamespaces have Secrets for gateways.
	CredentialNamespaces []string
	// Authenticate: callers in the cluster authenticate with its tokens.
	Authenticate bool
	// Configuration: objects of the cluster configure the mesh.
	Configuration bool
	// Renew: the account renews its own token.
	Renew bool
	// Serve: the control plane runs in the cluster with this account, and also writes
	// objects.
	Serve bool
}

// Annotations returns the annotations with the readable namespaces.
func (s Scope) Annotations() map[string]string {
	out := map[string]string{}
	if s.Namespaces != nil {
		out[remotesecret.AnnotationNamespaces] = strings.Join(s.Namespaces, ",")
	}
	if s.CredentialNamespaces != nil {
		out[remotesecret.AnnotationCredentialNamespaces] = strings.Join(s.CredentialNamespaces, ",")
	}
	return out
}

// Account is the service account of a reader.
type Account struct{ Namespace, Name string }

func (a Account) String() string { return a.Namespace + "/" + a.Name }

// AccountOf returns the service account of the cluster's token, unverified.
func AccountOf(c *remotesecret.Cluster) (Account, error) {
	claims, err := remotesecret.ReadToken(c.User.Token)
	if err != nil {
		return Account{}, fmt.Errorf("%s has no token of a service account: %w", c, err)
	}
	namespace, name, err := token.ParseSubject(claims.Subject)
	if err != nil {
		return Account{}, fmt.Errorf("%s has a token of %q, which is no service account", c, claims.Subject)
	}
	return Account{Namespace: namespace, Name: name}, nil
}

// roleName is the name of all roles and bindings of the account.
func (a Account) roleName() string { return "meshctl-reader-" + a.Namespace + "-" + a.Name }

func (s Scope) roleName(a Account) string {
	if s.Serve {
		return "meshctl-" + a.Namespace
	}
	return a.roleName()
}

// grant is a rule in a namespace, or in the whole cluster if namespace is empty.
type grant struct {
	namespace string
	rule      rbacv1.PolicyRule
	without   string
}

// grants derives the rules of the account from the reads of the control plane.
func (s Scope) grants(a Account) []grant {
	var out []grant
	namespaces := s.Namespaces
	if namespaces == nil {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, r := range source.Watched() {
		in := []string{metav1.NamespaceAll}
		rule := rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Name}, Verbs: r.Verbs()}
		if r.OwnOnly && !s.Configuration {
			continue
		}
		switch r.Use {
		case source.ForMesh:
			if r.Namespaced() {
				in = namespaces
			}
		case source.ForConfiguration:
			if !s.Configuration {
				continue
			}
			if r.Object != "" { // lists and watches a single object
				in, rule.ResourceNames = []string{a.Namespace}, []string{r.Object}
			}
		case source.ForCredentials:
			in = s.CredentialNamespaces
		}
		for _, namespace := range in {
			out = append(out, grant{namespace, rule, r.Without})
		}
	}
	if s.Serve {
		out = append(out, serveGrants(a)...)
	}
	create := func(namespace, group, resource, without string, names ...string) {
		out = append(out, grant{namespace, rbacv1.PolicyRule{
			APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"create"}, ResourceNames: names,
		}, without})
	}
	if s.Authenticate {
		const without = "callers of the cluster cannot prove themselves with its tokens"
		create("", "authentication.k8s.io", "tokenreviews", without)
		create("", "authorization.k8s.io", "subjectaccessreviews", "gateways of the cluster are given no certificates")
	}
	if s.Renew {
		create(a.Namespace, "", "serviceaccounts/token", "the token is not renewed before it ends", a.Name)
	}
	return out
}

// serveGrants are additional rules for a control plane in its own cluster.
func serveGrants(a Account) []grant {
	system := func(group, resource, without string, verbs ...string) grant {
		return grant{a.Namespace, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}, without}
	}
	const noRoots = "pods are not given the roots of the mesh"
	return []grant{
		// Remote secrets with renewed tokens, and the signing CA, which it may create.
		system("", "secrets", "there is no signing CA, and no other cluster is read", "get", "list", "watch", "create", "update"),
		system("coordination.k8s.io", "leases", "nothing is written, and replicas are not found",
			"get", "list", "create", "update", "delete"),
		{metav1.NamespaceAll, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"istio-ca-root-cert"},
			Verbs: []string{"list", "watch", "update", "delete"},
		}, noRoots},
		{metav1.NamespaceAll, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}}, noRoots},
		{metav1.NamespaceAll, rbacv1.PolicyRule{
			APIGroups: []string{"networking.istio.io"}, Resources: []string{"workloadentries/status"}, Verbs: []string{"patch"},
		}, "the health of virtual machines is known to the control plane alone that their proxies talk to"},
	}
}

// Rights returns the requests that the grants allow.
func (s Scope) Rights(a Account) []Right {
	var out []Right
	for _, g := range s.grants(a) {
		for _, verb := range g.rule.Verbs {
			r := Right{Verb: verb, Group: g.rule.APIGroups[0], Resource: g.rule.Resources[0], Namespace: g.namespace, Without: g.without}
			if len(g.rule.ResourceNames) > 0 {
				r.Name = g.rule.ResourceNames[0]
			}
			out = append(out, r)
		}
	}
	return out
}

// Objects returns the service account, its roles and bindings, in the order to apply.
func (s Scope) Objects(a Account) []Object {
	objects := []Object{object(&corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace},
	})}
	byNamespace := map[string][]rbacv1.PolicyRule{}
	for _, g := range s.grants(a) {
		if s.Style != Istio || len(g.rule.ResourceNames) > 0 { // Istio's role lacks rules for single objects
			byNamespace[g.namespace] = addRule(byNamespace[g.namespace], g.rule)
		}
	}
	if s.Style == Istio {
		byNamespace[""] = istioRules()
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		objects = append(objects, roleObjects(a, s.roleName(a), namespace, byNamespace[namespace])...)
	}
	return objects
}

// addRule joins the resources of one group that have the same verbs.
func addRule(rules []rbacv1.PolicyRule, rule rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for i, r := range rules {
		if slices.Equal(r.APIGroups, rule.APIGroups) && slices.Equal(r.Verbs, rule.Verbs) && slices.Equal(r.ResourceNames, rule.ResourceNames) {
			rules[i].Resources = append(slices.Clone(r.Resources), rule.Resources...)
			return rules
		}
	}
	return append(rules, rule)
}

// roleObjects returns a role and its binding, for the whole cluster or a namespace.
func roleObjects(a Account, name, namespace string, rules []rbacv1.PolicyRule) []Object {
	meta := metav1.ObjectMeta{
		Name: name, Namespace: namespace, Labels: map[string]string{labelManagedBy: managedBy},
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.Name, Namespace: a.Namespace}}
	kind := func(k string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: k}
	}
	ref := func(k string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: k, Name: meta.Name}
	}
	if namespace == "" {
		return []Object{
			object(&rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: meta, Rules: rules}),
			object(&rbacv1.ClusterRoleBinding{TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects}),
		}
	}
	return []Object{
		object(&rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: meta, Rules: rules}),
		object(&rbacv1.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: meta, RoleRef: ref("Role"), Subjects: subjects}),
	}
}

// istioRules returns the rules of Istio's istio-reader-clusterrole.
func istioRules() []rbacv1.PolicyRule {
	read := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: source.Verbs()}
	}
	create := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	all := read("config.istio.io", "*")
	all.APIGroups = []string{
		"config.istio.io", "security.istio.io", "networking.istio.io", "authentication.istio.io", "rbac.istio.io",
		"telemetry.istio.io", "extensions.istio.io",
	}
	return []rbacv1.PolicyRule{
		all,
		read("", "endpoints", "pods", "services", "nodes", "replicationcontrollers", "namespaces", "secrets", "configmaps"),
		read("networking.istio.io", "workloadentries"),
		{APIGroups: []string{"networking.x-k8s.io", "gateway.networking.k8s.io"}, Resources: []string{"gateways"}, Verbs: source.Verbs()},
		read("apiextensions.k8s.io", "customresourcedefinitions"),
		read("discovery.k8s.io", "endpointslices"),
		create("multicluster.x-k8s.io", "serviceexports", "get", "list", "watch", "create", "delete"),
		read("multicluster.x-k8s.io", "serviceimports"),
		read("apps", "replicasets"),
		create("authentication.k8s.io", "tokenreviews", "create"),
		create("authorization.k8s.io", "subjectaccessreviews", "create"),
	}
}

// Object is one object to apply.
type Object struct {
	Kind, Namespace, Name string
	// Value is the object of k8s.io/api.
	Value any
}

func object(value interface {
	runtime.Object
	metav1.Object
},
) Object {
	return Object{
		Kind: value.GetObjectKind().GroupVersionKind().Kind, Namespace: value.GetNamespace(), Name: value.GetName(), Value: value,
	}
}
