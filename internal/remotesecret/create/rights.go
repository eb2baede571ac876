package create

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
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
	// Webhooks are the webhook configurations of the control plane that it writes; default
	// those without a revision.
	Webhooks []string
	// Revision is the revision of the control plane with Configuration.
	Revision string
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

// Reader is Istio's name of the service account by which control planes of other clusters
// read a cluster.
const Reader = "istio-reader-service-account"

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

// SelectOwn selects the roles, bindings and Secrets that meshctl makes for readers.
const SelectOwn = labelManagedBy + "=" + managedBy

// roleName is the name of all roles and bindings of the account.
func (a Account) roleName() string { return "meshctl-reader-" + a.Namespace + "-" + a.Name }

// ReaderOf returns the account in a namespace to which a role or binding of that name
// belongs.
func ReaderOf(role, namespace string) (Account, bool) {
	name, ok := strings.CutPrefix(role, Account{Namespace: namespace}.roleName())
	return Account{Namespace: namespace, Name: name}, ok && name != ""
}

func (s Scope) roleName(a Account) string {
	if s.Serve {
		return a.Name + "-" + a.Namespace
	}
	return a.roleName()
}

// grant is a rule in a namespace, or in the whole cluster if namespace is empty.
type grant struct {
	namespace string
	rule      rbacv1.PolicyRule
	without   string
}

func ruleFor(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// grants derives the rules of the account from the reads of the control plane.
func (s Scope) grants(a Account) []grant {
	var out []grant
	namespaces := s.Namespaces
	if namespaces == nil {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, r := range source.Watched() {
		r = r.Of(s.Revision)
		in := []string{metav1.NamespaceAll}
		rule := ruleFor(r.Group, r.Name, r.Verbs()...)
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
		out = append(out, s.webhookGrants(a)...)
		if name := mesh.ConfigMapOf(s.Revision); name != mesh.MeshConfigMap {
			rule := ruleFor("", "configmaps", "get", "patch")
			rule.ResourceNames = []string{name}
			out = append(out, grant{a.Namespace, rule, "tools such as Kiali do not find the MeshConfig of the revision"})
		}
	}
	if s.Authenticate {
		out = append(out,
			grant{"", ruleFor("authentication.k8s.io", "tokenreviews", "create"), "callers of the cluster cannot prove themselves with its tokens"},
			grant{"", ruleFor("authorization.k8s.io", "subjectaccessreviews", "create"), "gateways of the cluster are given no certificates"})
	}
	if s.Renew {
		rule := ruleFor("", "serviceaccounts/token", "create")
		rule.ResourceNames = []string{a.Name}
		out = append(out, grant{a.Namespace, rule, "the token is not renewed before it ends"})
	}
	return out
}

// serveGrants are additional rules for a control plane in its own cluster.
func serveGrants(a Account) []grant {
	return append([]grant{
		// Remote secrets with renewed tokens, and the signing CA, which it may create.
		{
			a.Namespace, ruleFor("", "secrets", "get", "list", "watch", "create", "update"),
			"there is no signing CA, and no other cluster is read",
		},
		{
			a.Namespace, ruleFor("coordination.k8s.io", "leases", "get", "list", "create", "update", "delete"),
			"nothing is written, and replicas are not found",
		},
		{
			metav1.NamespaceAll, ruleFor("networking.istio.io", "serviceentries/status", "patch"),
			"the allocated addresses of hosts may change when the control plane restarts",
		},
	}, proxyGrants()...)
}

// proxyGrants are the rules to write for the proxies of a cluster: the roots of the mesh,
// and WorkloadEntries.
func proxyGrants() []grant {
	const noRoots = "pods are not given the roots of the mesh"
	// Server-side apply makes an object whose name is known, so the right to create can be limited to it.
	roots := ruleFor("", "configmaps", "list", "watch", "create", "patch", "update", "delete")
	roots.ResourceNames = []string{"istio-ca-root-cert"}
	return []grant{
		{metav1.NamespaceAll, roots, noRoots},
		{
			metav1.NamespaceAll, ruleFor("networking.istio.io", "workloadentries/status", "patch"),
			"the health of virtual machines is known to the control plane alone that their proxies talk to",
		},
		{
			metav1.NamespaceAll, ruleFor("networking.istio.io", "workloadentries", "create", "patch", "delete"),
			"machines that name a WorkloadGroup are not registered",
		},
	}
}

// webhookGrants are the rules to write the webhook configurations of the control plane.
func (s Scope) webhookGrants(a Account) []grant {
	names := s.Webhooks
	if names == nil {
		injector := "istio-sidecar-injector"
		if a.Namespace != mesh.DefaultSystemNamespace {
			injector += "-" + a.Namespace
		}
		names = []string{injector, "istio-validator-" + a.Namespace}
	}
	return append(bundleGrants("mutatingwebhookconfigurations", names), bundleGrants("validatingwebhookconfigurations", names)...)
}

// bundleGrants are the rules to write the roots of the mesh to webhook configurations.
func bundleGrants(resource string, names []string) []grant {
	const group, without = "admissionregistration.k8s.io", "API servers cannot verify the webhooks of this control plane"
	patch := ruleFor(group, resource, "patch")
	patch.ResourceNames = names
	return []grant{{metav1.NamespaceAll, ruleFor(group, resource, "list"), without}, {metav1.NamespaceAll, patch, without}}
}

// RemoteWriter returns a role for the account, and its binding, with which the control plane
// of another cluster writes what the proxies of this one need: the roots of the mesh, in all
// namespaces and in these webhook configurations of the injector, and WorkloadEntries.
func RemoteWriter(a Account, name string, injectors []string) []kube.Object {
	var rules []rbacv1.PolicyRule
	for _, g := range append(proxyGrants(), bundleGrants("mutatingwebhookconfigurations", injectors)...) {
		rules = addRule(rules, g.rule)
	}
	return roleObjects(a, name+"-"+a.Namespace, metav1.NamespaceAll, rules)
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
func (s Scope) Objects(a Account) []kube.Object {
	objects := []kube.Object{&corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace},
	}}
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
func roleObjects(a Account, name, namespace string, rules []rbacv1.PolicyRule) []kube.Object {
	meta := metav1.ObjectMeta{
		Name: name, Namespace: namespace, Labels: map[string]string{labelManagedBy: managedBy},
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.Name, Namespace: a.Namespace}}
	ref := func(k string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: k, Name: meta.Name}
	}
	if namespace == "" {
		return []kube.Object{
			&rbacv1.ClusterRole{TypeMeta: rbacKind("ClusterRole"), ObjectMeta: meta, Rules: rules},
			&rbacv1.ClusterRoleBinding{TypeMeta: rbacKind("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects},
		}
	}
	return []kube.Object{
		&rbacv1.Role{TypeMeta: rbacKind("Role"), ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: rbacKind("RoleBinding"), ObjectMeta: meta, RoleRef: ref("Role"), Subjects: subjects},
	}
}

func rbacKind(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

// istioRules returns the rules of Istio's istio-reader-clusterrole.
func istioRules() []rbacv1.PolicyRule {
	read := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: source.Verbs()}
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
		ruleFor("multicluster.x-k8s.io", "serviceexports", "get", "list", "watch", "create", "delete"),
		read("multicluster.x-k8s.io", "serviceimports"),
		read("apps", "replicasets"),
		ruleFor("authentication.k8s.io", "tokenreviews", "create"),
		ruleFor("authorization.k8s.io", "subjectaccessreviews", "create"),
	}
}
