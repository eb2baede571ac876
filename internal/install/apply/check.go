package apply

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/internal/server/source"
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	Error   Level = "Error"   // it does not work
	Warning Level = "Warning" // a part does not work
	Info    Level = "Info"    // a remark, no fault
)

// Finding is a fault of a cluster.
type Finding struct {
	Level Level `json:"level"`
	// Cluster is the context of the cluster, if several are checked.
	Cluster string `json:"cluster,omitempty"`
	Object  string `json:"object"` // with its kind
	Fault   string `json:"fault"`
	Hint    string `json:"hint,omitempty"`
}

// oldest is the oldest minor version of Kubernetes 1 that runs native sidecars.
const oldest = 29

// findings collects the findings of a check.
type findings []Finding

func (f *findings) add(level Level, object, hint, format string, args ...any) {
	*f = append(*f, Finding{Level: level, Object: object, Fault: fmt.Sprintf(format, args...), Hint: hint})
}

// CheckBefore returns the faults that installing the values would meet: of versions,
// rights, kinds and objects of others. server is the same cluster.
func (c *Cluster) CheckBefore(ctx context.Context, v *install.Values, server *create.APIServer) ([]Finding, error) {
	var out findings
	if err := c.checkVersion(ctx, &out); err != nil {
		return nil, err
	}
	objects, err := install.Objects(v)
	if err != nil {
		return nil, err
	}
	missing, err := server.Missing(ctx, rights(objects))
	if err != nil {
		return nil, err
	}
	for _, r := range missing {
		out.add(Error, "your user", "have the right granted, or use --as", "may not %s", r)
	}
	served, err := c.API.Resources(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if err := c.checkKinds(ctx, v, served, &out); err != nil {
		return nil, err
	}
	for _, o := range objects {
		have, err := c.API.GetAny(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", c.Name, install.Ref(o), err)
		}
		if have == nil {
			continue
		}
		if err := (&step{want: o, have: have}).claim(v); err != nil {
			out.add(Error, install.Ref(o), "install beside it with --revision NAME, or remove it", "%v", err)
		}
	}
	if err := c.checkInjectors(ctx, v, &out); err != nil {
		return nil, err
	}
	secrets, err := c.missingSecrets(ctx, v)
	for _, s := range secrets {
		out.add(Error, "Secret "+v.Namespace+"/"+s.Name, s.Fix, "it is missing, and the control plane does not start without it")
	}
	return out, err
}

var minorVersion = regexp.MustCompile(`^\d+`)

func (c *Cluster) checkVersion(ctx context.Context, out *findings) error {
	version, err := c.API.Version(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	minor, err := strconv.Atoi(minorVersion.FindString(version.Minor))
	if err == nil && version.Major == "1" && minor < oldest {
		out.add(Error, "Kubernetes "+version.GitVersion, "upgrade the cluster", "it is older than 1.%d, which runs native sidecars", oldest)
	}
	return nil
}

// rights returns the rights to apply the objects.
func rights(objects []*unstructured.Unstructured) []create.Right {
	var out []create.Right
	for _, o := range objects {
		resource := kube.ResourceOf(o.GroupVersionKind())
		for _, verb := range []string{"get", "create", "patch", "list", "delete"} {
			r := create.Right{Verb: verb, Group: resource.Group, Resource: resource.Resource, Namespace: o.GetNamespace()}
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out
}

// checkKinds checks the kinds that the API server serves, and the objects of those that
// the control plane does not start with.
func (c *Cluster) checkKinds(ctx context.Context, v *install.Values, served []kube.Resource, out *findings) error {
	find := func(group, resource string) *kube.Resource {
		i := slices.IndexFunc(served, func(r kube.Resource) bool { return r.Group == group && r.Resource == resource })
		if i < 0 {
			return nil
		}
		return &served[i]
	}
	for _, r := range source.Watched() {
		found := find(r.Group, r.Name)
		object := "CustomResourceDefinition " + r.Name + "." + r.Group
		switch {
		case found == nil && strings.HasSuffix(r.Group, ".istio.io") && !v.CRDs && !r.Unread:
			out.add(Warning, object, "install it with --crds", "it is missing: %s", r.Without)
		case found != nil && !slices.Contains(r.Versions, found.Version):
			out.add(Warning, object, "upgrade the definition", "the API server prefers version %s, want one of %s", found.Version, strings.Join(r.Versions, ", "))
		case found != nil && r.Security && r.Unread:
			items, err := c.API.ListAny(ctx, schema.GroupVersionKind{Group: r.Group, Version: found.Version, Kind: r.KubeKind}, "", "", 1)
			if err != nil {
				return fmt.Errorf("%s: list %s: %w", c.Name, r.Name, err)
			}
			if len(items) > 0 {
				out.add(Error, install.Ref(&items[0]), "delete the objects of the kind, or set MESHCTL_IGNORE_SECURITY_POLICIES in pilot.env",
					"the control plane does not enforce this kind, and does not start with objects of it")
			}
		}
	}
	return nil
}

// checkInjectors finds injectors of others.
func (c *Cluster) checkInjectors(ctx context.Context, v *install.Values, out *findings) error {
	configurations, err := c.API.ListAny(ctx, mutatingKind, "", "", maxListed)
	if err != nil {
		return fmt.Errorf("%s: list webhook configurations: %w", c.Name, err)
	}
	for i := range configurations {
		o := &configurations[i]
		o.SetGroupVersionKind(mutatingKind)
		if o.GetLabels()[install.LabelInstallation] != "" {
			continue
		}
		hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
		for _, h := range hooks {
			hook, _ := h.(map[string]any)
			if name, _ := hook["name"].(string); strings.HasPrefix(name, "namespace.sidecar-injector.") && v.Revision == "" {
				out.add(Error, install.Ref(o), "install with --revision NAME, and label namespaces with istio.io/rev", "it also injects where istio-injection is enabled")
			}
		}
	}
	return nil
}

var (
	mutatingKind   = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"}
	validatingKind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"}
	deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	serviceKind    = schema.GroupVersionKind{Version: "v1", Kind: "Service"}
	sliceKind      = schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}
)

// CheckAfter returns the faults of the installations in the cluster.
func (c *Cluster) CheckAfter(ctx context.Context) ([]Finding, error) {
	var out findings
	names, err := c.Installations(ctx)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		out.add(Error, c.Name, "make one with meshctl install", "there is no installation")
		return out, nil
	}
	const every = install.LabelInstallation
	var controlPlane *unstructured.Unstructured
	for _, check := range []struct {
		kind  schema.GroupVersionKind
		check func(context.Context, *unstructured.Unstructured, *findings) error
	}{
		{deploymentKind, c.checkDeployment},
		{serviceKind, c.checkService},
		{mutatingKind, c.checkWebhooks},
		{validatingKind, c.checkWebhooks},
	} {
		items, err := c.API.ListAny(ctx, check.kind, "", every, maxListed)
		if err != nil {
			return nil, fmt.Errorf("%s: list %s: %w", c.Name, check.kind.Kind, err)
		}
		for i := range items {
			items[i].SetGroupVersionKind(check.kind)
			if err := check.check(ctx, &items[i], &out); err != nil {
				return nil, err
			}
			if check.kind == deploymentKind && items[i].GetLabels()["app"] == "istiod" && controlPlane == nil {
				controlPlane = &items[i]
			}
		}
	}
	if controlPlane == nil {
		return out, nil // the control plane of another cluster reads the objects in its own cluster
	}
	err = c.checkDefinitions(ctx, controlPlane, &out)
	return out, err
}

// checkDefinitions finds kinds that the cluster has lost: other kinds of Istio are defined. Definitions of older
// versions of Istio lack extensions.
func (c *Cluster) checkDefinitions(ctx context.Context, controlPlane *unstructured.Unstructured, out *findings) error {
	served, err := c.API.Resources(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	var missing []source.Resource
	some := false
	for _, r := range source.Watched() {
		if !strings.HasSuffix(r.Group, ".istio.io") || r.Group == "extensions.istio.io" || r.Unread || r.Optional {
			continue
		}
		if slices.ContainsFunc(served, func(s kube.Resource) bool { return s.Group == r.Group && s.Resource == r.Name }) {
			some = true
		} else {
			missing = append(missing, r)
		}
	}
	for _, r := range missing {
		if some {
			out.add(Warning, "CustomResourceDefinition "+r.Name+"."+r.Group, upgradeOf(controlPlane, "--crds"), "it is missing, and with it all objects of the kind: %s", r.Without)
		}
	}
	return nil
}

// upgradeOf returns the command that makes objects of the installation of an object again.
func upgradeOf(o *unstructured.Unstructured, flags string) string {
	if o.GetLabels()[install.LabelManagedBy] != install.ManagedBy {
		return "make it again with helm upgrade"
	}
	out := "meshctl upgrade"
	if revision, ok := strings.CutPrefix(o.GetLabels()[install.LabelInstallation], install.Default("").Name+"-"); ok {
		out += " --revision " + revision
	}
	return strings.TrimSuffix(out+" "+flags, " ")
}

func (c *Cluster) checkDeployment(ctx context.Context, o *unstructured.Unstructured, out *findings) error {
	if replicas, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found && replicas == 0 {
		out.add(Error, install.Ref(o), fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=2", o.GetNamespace(), o.GetName()), "it has 0 replicas")
		return nil
	}
	reason, err := c.unavailable(ctx, o)
	if reason != "" {
		out.add(Error, install.Ref(o), fmt.Sprintf("kubectl -n %s describe deployment %s", o.GetNamespace(), o.GetName()), "%s", reason)
	}
	return err
}

// checkService checks that a Service has ready endpoints and, for a load balancer, an
// address.
func (c *Cluster) checkService(ctx context.Context, o *unstructured.Unstructured, out *findings) error {
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "type")
	if kind == "ExternalName" {
		return nil // of a control plane in another cluster
	}
	slices, err := c.API.ListAny(ctx, sliceKind, o.GetNamespace(), "kubernetes.io/service-name="+o.GetName(), maxListed)
	if err != nil {
		return fmt.Errorf("%s: list the endpoints of %s: %w", c.Name, install.Ref(o), err)
	}
	ready := 0
	for i := range slices {
		endpoints, _, _ := unstructured.NestedSlice(slices[i].Object, "endpoints")
		for _, e := range endpoints {
			endpoint, _ := e.(map[string]any)
			if ok, found, _ := unstructured.NestedBool(endpoint, "conditions", "ready"); ok || !found {
				ready++
			}
		}
	}
	if ready == 0 {
		if err := c.addNoEndpoint(ctx, o, out); err != nil {
			return err
		}
	}
	addresses, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress")
	external, _, _ := unstructured.NestedSlice(o.Object, "spec", "externalIPs")
	if kind == "LoadBalancer" && len(addresses)+len(external) == 0 {
		out.add(Warning, install.Ref(o), "give the cluster a load balancer, or the Service externalIPs", "it has no address, so nothing outside the cluster reaches it")
	}
	return nil
}

// addNoEndpoint adds the finding of a Service without a ready endpoint: its Deployment is gone, or has no
// ready pod.
func (c *Cluster) addNoEndpoint(ctx context.Context, o *unstructured.Unstructured, out *findings) error {
	selected, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
	deployments, err := c.API.ListAny(ctx, deploymentKind, o.GetNamespace(), "", maxListed)
	if err != nil {
		return fmt.Errorf("%s: list the Deployments of %s: %w", c.Name, o.GetNamespace(), err)
	}
	for i := range deployments {
		pods, _, _ := unstructured.NestedStringMap(deployments[i].Object, "spec", "template", "metadata", "labels")
		if labels.SelectorFromSet(selected).Matches(labels.Set(pods)) {
			out.add(Error, install.Ref(o), fmt.Sprintf("kubectl -n %s describe deployment %s", o.GetNamespace(), deployments[i].GetName()), "it has no ready endpoint")
			return nil
		}
	}
	for i := range deployments {
		if deployments[i].GetName() != o.GetName() {
			continue
		}
		right, _, _ := unstructured.NestedStringMap(deployments[i].Object, "spec", "selector", "matchLabels")
		value, err := json.Marshal(right)
		if err != nil {
			return fmt.Errorf("%s: the selector of Deployment %s/%s: %w", c.Name, o.GetNamespace(), o.GetName(), err)
		}
		out.add(Error, install.Ref(o), fmt.Sprintf(`kubectl -n %s patch service %s --type json -p '[{"op":"add","path":"/spec/selector","value":%s}]'`, o.GetNamespace(), o.GetName(), value),
			"it has no endpoint, as its selector %s selects no pod of Deployment %s", labels.SelectorFromSet(selected), o.GetName())
		return nil
	}
	out.add(Error, install.Ref(o), upgradeOf(o, ""), "it has no endpoint, as there is no Deployment of its pods")
	return nil
}

// checkWebhooks checks that the control plane has made itself known to the API server.
func (c *Cluster) checkWebhooks(ctx context.Context, o *unstructured.Unstructured, out *findings) error {
	fault, err := withoutBundle(o), error(nil)
	if fault == "" {
		fault, err = c.withOtherRoots(ctx, o)
	}
	if fault == "" {
		return err
	}
	hint := "see the log of the control plane for webhook configurations"
	if o.GetLabels()[install.LabelManagedBy] != install.ManagedBy {
		fault += "; the control plane writes it only with the label " + install.LabelManagedBy
		hint = fmt.Sprintf("kubectl label %s %s %s=%s --overwrite", strings.ToLower(o.GetKind()), o.GetName(), install.LabelManagedBy, install.ManagedBy)
	}
	out.add(Error, install.Ref(o), hint, "%s", fault)
	return nil
}

// withOtherRoots returns a fault if the API server cannot verify the control plane behind a webhook by
// the caBundle, because this has none of the roots that the control plane has published.
func (c *Cluster) withOtherRoots(ctx context.Context, o *unstructured.Unstructured) (string, error) {
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		namespace, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "namespace")
		text, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle")
		if namespace == "" || text == "" {
			continue
		}
		published := &unstructured.Unstructured{}
		published.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
		published.SetNamespace(namespace)
		published.SetName(install.RootConfigMap)
		published, err := c.API.GetAny(ctx, published)
		if err != nil {
			return "", fmt.Errorf("%s: read the roots of the mesh: %w", c.Name, err)
		}
		if published == nil {
			continue
		}
		pem, _, _ := unstructured.NestedString(published.Object, "data", "root-cert.pem")
		bundle, _ := base64.StdEncoding.DecodeString(text)
		if !shareCertificate([]byte(pem), bundle) {
			return fmt.Sprintf("the caBundle of webhook %s has no root of the mesh (%s), so the API server cannot call the control plane", hook["name"], install.Ref(published)), nil
		}
	}
	return "", nil
}

// shareCertificate reports whether two bundles have a certificate in common, or the first one has none.
func shareCertificate(a, b []byte) bool {
	first, errFirst := certs.ParseCerts(a)
	second, errSecond := certs.ParseCerts(b)
	if errFirst != nil || len(first) == 0 {
		return true
	}
	return errSecond == nil && slices.ContainsFunc(second, func(s *x509.Certificate) bool { return slices.ContainsFunc(first, s.Equal) })
}
