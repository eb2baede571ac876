package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Labels by which namespaces and pods choose an injector.
const (
	labelInjection = "istio-injection" // of namespaces
	labelRevision  = "istio.io/rev"
	labelInject    = "sidecar.istio.io/inject" // of pods
	labelDataplane = "istio.io/dataplane-mode"
)

// injection checks which pods of each cluster have a proxy.
func (m *checker) injection() {
	for _, id := range slices.Sorted(maps.Keys(m.clusters)) {
		c := m.newInjectedCluster(id)
		c.checkNamespaces()
		c.checkUnlabelled()
		c.checkInjectors()
		c.checkPods()
	}
	for _, f := range list[*snapshot.CreationFailure](m, snapshot.KindReplicaSet) {
		m.refusedPods(f, f.Key())
	}
	reported := map[snapshot.Key]bool{}
	for _, f := range list[*snapshot.CreationFailure](m, snapshot.KindEvent) {
		of := snapshot.Key{Kind: snapshot.Kind(f.Owner.Kind), Cluster: f.Cluster, Namespace: f.Namespace, Name: f.Owner.Name}
		if !reported[of] && m.persists(f) {
			reported[of] = true
			m.refusedPods(f, of)
		}
	}
}

// injectedCluster is what decides about the injection in a cluster.
type injectedCluster struct {
	*checker
	id        mesh.ClusterID
	injectors []*snapshot.Injector
	// revisions holds the revisions of control planes, and names these and their tags.
	revisions, names []string
	// images holds the images of control planes by revision.
	images     map[string]string
	namespaces map[string]*snapshot.Namespace
	system     map[string]bool // namespaces of control planes
	// known reports whether all injectors are known.
	known bool
	// reported holds the workloads with a finding of a code.
	reported map[reported]bool
}

type reported struct {
	code      codes.Code
	namespace string
	owner     snapshot.Owner
}

func (m *checker) newInjectedCluster(id mesh.ClusterID) *injectedCluster {
	c := &injectedCluster{
		checker: m, id: id, images: map[string]string{}, namespaces: map[string]*snapshot.Namespace{},
		system: map[string]bool{m.Snapshot.Mesh.RootNamespace: true}, reported: map[reported]bool{},
	}
	c.known = m.Whole != nil && m.Whole(id)
	for _, o := range list[*snapshot.Namespace](m, snapshot.KindNamespace) {
		if o.Cluster == id {
			c.namespaces[o.Name] = o
		}
	}
	for _, o := range list[*snapshot.Injector](m, snapshot.KindInjector) {
		if o.Cluster == id {
			c.injectors, c.known = append(c.injectors, o), true
			c.names = append(c.names, o.Revision)
			if o.Tag != "" {
				c.names = append(c.names, o.Tag)
			}
		}
	}
	serving := map[string]bool{} // revisions of which a pod is ready
	for _, pods := range m.workloads {
		for _, p := range pods {
			if p.Cluster == id && p.Labels["app"] == "istiod" {
				revision := cmp.Or(p.Labels[labelRevision], mesh.DefaultRevision)
				c.revisions = append(c.revisions, revision)
				c.system[p.Namespace] = true
				if p.Injection != nil && p.Injection.ControlPlane != "" && !p.Injection.Ending {
					c.addImage(revision, p.Injection.ControlPlane, !p.Unready, serving)
				}
			}
		}
	}
	for _, names := range []*[]string{&c.revisions, &c.names} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return c
}

// addImage adds the image of a pod of a control plane. During a rollout, the images of pods that are not ready
// do not count, and if ready pods have several images, none does.
func (c *injectedCluster) addImage(revision, image string, ready bool, serving map[string]bool) {
	was, known := c.images[revision]
	switch {
	case ready && !serving[revision] || !known:
		c.images[revision] = image
	case was != image && ready == serving[revision]:
		c.images[revision] = ""
	}
	serving[revision] = serving[revision] || ready
}

// kubectl returns the beginning of a command about a namespace.
func (m *checker) kubectl(id mesh.ClusterID, namespace string) string {
	out := "kubectl" + m.flags(id)
	if namespace != "" {
		out += " -n " + namespace
	}
	return out
}

// flags returns the flags of commands for a cluster, with a space before.
func (m *checker) flags(id mesh.ClusterID) string {
	if m.Flags == nil || m.Flags(id) == "" {
		return ""
	}
	return " " + m.Flags(id)
}

// outside reports whether a namespace is none of applications.
func (c *injectedCluster) outside(name string) bool {
	return mesh.IsKubernetesNamespace(name) || c.system[name]
}

// checkNamespaces finds the labels of namespaces by which no pod, or another pod than it seems, is
// injected.
func (c *injectedCluster) checkNamespaces() {
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		ns := c.namespaces[name]
		value, has := ns.Labels[labelInjection]
		revision, hasRevision := ns.Labels[labelRevision]
		label := c.kubectl(c.id, "") + " label namespace " + name
		switch field := "metadata.labels"; {
		case c.outside(name) || !has && !hasRevision:
		case has && hasRevision:
			c.findFix(codes.NamespaceMultipleInjectionLabels, ns, label+" "+labelInjection+"-", field,
				"has both %s=%s and %s=%s: %s has no effect", labelInjection, value, labelRevision, revision, labelRevision)
		case has && value != "enabled" && value != "disabled":
			fix := label + " " + labelInjection + "=enabled --overwrite"
			if c.known && !c.injects(map[string]string{labelInjection: "enabled"}, nil) { // there is no default revision
				fix = label + " " + labelInjection + "- " + labelRevision + "=" + c.revisionFor("")
			}
			c.findFix(codes.NamespaceNotInjected, ns, fix, field+"["+labelInjection+"]",
				"is %q: pods of the namespace are not injected, which needs the value enabled", value)
		case !c.known || has && value == "disabled" || c.injects(ns.Labels, nil):
		case has:
			c.findFix(codes.UnknownRevision, ns, label+" "+labelInjection+"- "+labelRevision+"="+c.revisionFor(""), field+"["+labelInjection+"]",
				"stands for the revision default, but %s: pods of the namespace are not injected", c.existing())
		default:
			c.findFix(codes.UnknownRevision, ns, c.useRevision(label, revision), field+"["+labelRevision+"]",
				"is %q, but %s: pods of the namespace are not injected", revision, c.existing())
		}
	}
}

// useRevision returns the command that sets the label of a revision, or that installs the revision
// if there is no other one.
func (c *injectedCluster) useRevision(label, revision string) string {
	if len(c.names) == 0 {
		return "meshctl install --revision " + revision + c.flags(c.id)
	}
	return label + " " + labelRevision + "=" + c.revisionFor(revision) + " --overwrite"
}

// revisionFor returns the revision that a person may mean by another name.
func (c *injectedCluster) revisionFor(name string) string {
	if near := output.NearestWord(name, c.names); near != "" {
		return near
	}
	if len(c.names) > 0 {
		return c.names[0]
	}
	return mesh.DefaultRevision
}

// existing states which revisions the cluster has.
func (c *injectedCluster) existing() string {
	switch len(c.names) {
	case 0:
		return "the cluster has no injector"
	case 1:
		return "the only revision of the cluster is " + c.names[0]
	}
	return "the revisions of the cluster are " + listed(c.names)
}

// injects reports whether an injector changes a pod, by the labels of the pod and of its namespace.
// If no injector is known, those of a common installation are assumed.
func (c *injectedCluster) injects(namespace, pod map[string]string) bool {
	if c.known {
		for _, o := range c.injectors {
			if slices.ContainsFunc(o.Webhooks, func(w snapshot.InjectorWebhook) bool { return w.Selects(namespace, pod) }) {
				return true
			}
		}
		return false
	}
	value, has := namespace[labelInjection]
	_, revision := namespace[labelRevision]
	_, own := pod[labelRevision]
	return pod[labelInject] != "false" && (value == "enabled" || !has && (revision || own || pod[labelInject] == "true"))
}

// checkInjectors finds webhooks whose control plane is gone: the API server refuses the pods that
// they select.
func (c *injectedCluster) checkInjectors() {
	if !c.known || len(c.revisions) == 0 && (c.Whole == nil || !c.Whole(c.id)) {
		return
	}
	for _, o := range c.injectors {
		for _, w := range o.Webhooks {
			if w.Service == "" {
				break
			}
			key := snapshot.Key{Kind: snapshot.KindService, Cluster: c.id, Namespace: w.Namespace, Name: w.Service}
			svc, _ := c.objects[key].(*snapshot.Service)
			what, fix, lacks := "", fmt.Sprintf("%s scale deployment %s --replicas=2", c.kubectl(c.id, w.Namespace), w.Service), "has no control plane"
			switch {
			case svc == nil:
				what, fix = "does not exist", "meshctl install --revision "+o.Revision+c.flags(c.id)
			case len(svc.Selector) > 0 && !slices.ContainsFunc(c.selected(w.Namespace, svc.Selector), func(p *snapshot.Pod) bool { return p.Cluster == c.id }):
				what = "has no pod"
				if slices.Contains(c.revisions, o.Revision) {
					what, lacks = "does not select the pods of the control plane", "injects nothing"
					fix = fmt.Sprintf(`%s patch service %s --type json -p '[{"op":"add","path":"/spec/selector","value":{"app":"istiod","istio.io/rev":"%s"}}]'`,
						c.kubectl(c.id, w.Namespace), w.Service, o.Revision)
				}
			default:
				continue
			}
			users, level := c.usersOf(o), codes.Error
			effect := "the API server refuses the pods that the webhook selects in " + listed(users)
			if len(users) == 0 {
				effect, level = "no namespace has its label", codes.Warning
			}
			f := c.findFix(codes.RevisionWithoutControlPlane, o, fix, "webhooks["+w.Name+"].clientConfig.service",
				"%s/%s %s: revision %s %s, and %s", w.Namespace, w.Service, what, cmp.Or(o.Tag, o.Revision), lacks, effect)
			if f != nil {
				f.Level = level
			}
			break
		}
	}
}

// usersOf returns the namespaces whose pods an injector changes.
func (c *injectedCluster) usersOf(o *snapshot.Injector) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		if !c.outside(name) && slices.ContainsFunc(o.Webhooks, func(w snapshot.InjectorWebhook) bool { return w.Selects(c.namespaces[name].Labels, nil) }) {
			out = append(out, name)
		}
	}
	return out
}

// checkPods checks the proxies of pods.
func (c *injectedCluster) checkPods() {
	for _, name := range slices.Sorted(maps.Keys(c.workloads)) {
		ns := c.namespaces[name]
		if ns == nil {
			ns = &snapshot.Namespace{}
		}
		for _, p := range c.workloads[name] {
			switch i := p.Injection; {
			case p.Cluster != c.id || i == nil || i.Ending || mesh.IsKubernetesNamespace(name):
			case i.Proxy == "auto":
				c.pod(p, codes.PodMissingProxy, c.setLabel(p, labelInject, "true"), "spec.containers[istio-proxy].image", `is "auto", which the injector replaces: no injector has changed the pod`)
			case i.Unpulled != "":
				c.unpulled(p)
			case i.Proxy != "":
				c.proxyOf(p)
			case !p.HostNetwork && !p.Proxyless && !c.outside(name):
				c.withoutProxy(p, ns.Labels)
			}
		}
	}
}

// pod adds a finding about a pod, and about the other pods of its workload.
func (c *injectedCluster) pod(p *snapshot.Pod, code codes.Code, fix, field, format string, args ...any) {
	owner := p.Injection.Owner
	if owner.Name == "" {
		owner = snapshot.Owner{Kind: "Pod", Name: p.Name}
	}
	at := reported{code, p.Namespace, owner}
	if c.reported[at] {
		return
	}
	c.reported[at] = true
	n := 0
	for _, other := range c.workloads[p.Namespace] {
		if other.Cluster == c.id && other.Injection != nil && other.Injection.Owner == p.Injection.Owner {
			n++
		}
	}
	message := fmt.Sprintf(format, args...)
	if n > 1 && p.Injection.Owner.Name != "" {
		message += fmt.Sprintf(" (%s %s has %d pods)", owner.Kind, owner.Name, n)
	}
	c.findFix(code, p, fix, field, "%s", message)
}

// resource returns the kind of an owner in commands of kubectl.
func resource(owner snapshot.Owner) string { return strings.ToLower(owner.Kind) + " " + owner.Name }

// replace returns the command that replaces the pods of the workload of a pod.
func (c *injectedCluster) replace(p *snapshot.Pod) string {
	kubectl := c.kubectl(c.id, p.Namespace)
	switch o := p.Injection.Owner; o.Kind {
	case "":
		return c.recreate(p, "")
	case "Deployment", "StatefulSet", "DaemonSet":
		return kubectl + " rollout restart " + resource(o)
	default:
		return kubectl + " delete pod " + p.Name
	}
}

// recreate returns the command that replaces a pod without an owner, after a change.
func (c *injectedCluster) recreate(p *snapshot.Pod, change string) string {
	kubectl := c.kubectl(c.id, p.Namespace)
	if change != "" {
		change = " | kubectl " + change + " --local --overwrite -f - -o yaml"
	}
	return fmt.Sprintf("%s get pod %s -o yaml%s | %s replace --force -f -", kubectl, p.Name, change, kubectl)
}

// setLabel returns the command that sets a label of the pods of a workload.
func (c *injectedCluster) setLabel(p *snapshot.Pod, key, value string) string {
	switch o := p.Injection.Owner; o.Kind {
	case "":
		return c.recreate(p, "label "+key+"="+value)
	case "Deployment", "StatefulSet", "DaemonSet":
		return c.patch(o, p.Namespace, fmt.Sprintf(`"labels":{"%s":"%s"}`, key, value))
	}
	return c.kubectl(c.id, "") + " label namespace " + p.Namespace + " " + labelInjection + "=enabled && " + c.replace(p)
}

// patch returns the command that changes the metadata of the pods of a workload.
func (c *injectedCluster) patch(o snapshot.Owner, namespace, metadata string) string {
	return fmt.Sprintf(`%s patch %s -p '{"spec":{"template":{"metadata":{%s}}}}'`, c.kubectl(c.id, namespace), resource(o), metadata)
}

// withoutProxy checks a pod without a proxy.
func (c *injectedCluster) withoutProxy(p *snapshot.Pod, namespace map[string]string) {
	i := p.Injection
	revision, asks := p.Labels[labelRevision]
	_, ambient := namespace[labelDataplane]
	switch text := cmp.Or(i.Label, i.Annotation); {
	case text == "false":
	case text != "" && text != "true":
		c.pod(p, codes.PodMissingProxy, c.setLabel(p, labelInject, "true"), "metadata.labels["+labelInject+"]", "is %q, want \"true\" or \"false\": the pod has no proxy", text)
	case c.injects(namespace, p.Labels):
		c.pod(p, codes.PodMissingProxy, c.replace(p), "", "has no container istio-proxy, although it would be injected now: it is older than the label or the control plane")
	case asks && c.known && !slices.Contains(c.names, revision):
		c.pod(p, codes.UnknownRevision, c.setLabel(p, labelRevision, c.revisionFor(revision)), "metadata.labels["+labelRevision+"]",
			"is %q, but %s: the pod has no proxy", revision, c.existing())
	case i.Annotation == "true" && namespace[labelInjection] != "disabled" && !ambient:
		c.pod(p, codes.PodMissingProxy, c.setLabel(p, labelInject, "true"), "metadata.annotations["+labelInject+"]", "is \"true\", but the pod has no proxy: in a namespace without a label for injection, only the label of this name has an effect")
	}
}

// unpulled reports an image that a node cannot pull.
func (c *injectedCluster) unpulled(p *snapshot.Pod) {
	i := p.Injection
	fix := "meshctl upgrade --image IMAGE" + c.flags(c.id)
	if image := c.images[cmp.Or(i.Revision, mesh.DefaultRevision)]; i.ChosenImage && i.Owner.Name != "" {
		fix = c.patch(i.Owner, p.Namespace, `"annotations":{"sidecar.istio.io/proxyImage":null}`)
	} else if image != "" && image != i.Unpulled {
		fix = "meshctl upgrade --image " + image + c.flags(c.id)
		if i.Revision != mesh.DefaultRevision && i.Revision != "" {
			fix += " --revision " + i.Revision
		}
		fix += " && " + c.replace(p)
	}
	c.pod(p, codes.ProxyImageNotPulled, fix, "", "does not start: its node cannot pull the image %s of the proxy (%s)", i.Unpulled, shortened(i.Reason))
}

// shortened returns a text of Kubernetes with at most 300 bytes, and a mark if there are more.
func shortened(reason string) string {
	const most = 300
	if len(reason) <= most {
		return reason
	}
	return strings.ToValidUTF8(reason[:most], "") + "…"
}

// proxyOf checks the revision and the version of the proxy of a pod.
func (c *injectedCluster) proxyOf(p *snapshot.Pod) {
	i := p.Injection
	revision := cmp.Or(i.Revision, mesh.DefaultRevision)
	if !i.Injected {
		return
	}
	ns := c.namespaces[p.Namespace]
	none := c.known && len(c.revisions)+len(c.names) == 0 && ns != nil && (ns.Labels[labelInjection] == "enabled" || ns.Labels[labelRevision] != "")
	if (len(c.revisions) > 0 || none) && !slices.Contains(c.revisions, revision) && !slices.Contains(c.names, revision) {
		fix := c.replace(p)
		if none {
			fix = "meshctl install --revision " + revision + c.flags(c.id)
		} else if ns != nil && !c.injects(ns.Labels, p.Labels) {
			fix = fmt.Sprintf("%s label namespace %s %s=%s --overwrite && %s", c.kubectl(c.id, ""), p.Namespace, labelRevision, c.revisionFor(revision), fix)
		}
		c.pod(p, codes.RemovedRevision, fix, "metadata.annotations["+labelRevision+"]", "the proxy is of revision %q, which has no control plane any more (there are %s): it gets no configuration and no certificates",
			revision, cmp.Or(listed(c.revisions), "none"))
		return
	}
	if chosen := c.chosen(ns, p); len(chosen) > 0 && !slices.Contains(chosen, revision) {
		c.pod(p, codes.IstioProxyImageMismatch, c.replace(p), "metadata.annotations["+labelRevision+"]", "the proxy is of revision %s, but the labels choose %s, which injects the pods that are made from now on",
			revision, listed(chosen))
		return
	}
	have, want := tagOf(i.Proxy), tagOf(c.images[revision])
	if !i.ChosenImage && have != "" && want != "" && have != want {
		c.pod(p, codes.IstioProxyImageMismatch, c.replace(p), "", "the proxy has the version %s, the control plane of its revision %s", have, want)
	}
}

// chosen returns the revisions of the injectors that select a pod, or nil if its namespace is not known.
func (c *injectedCluster) chosen(ns *snapshot.Namespace, p *snapshot.Pod) []string {
	var out []string
	for _, o := range c.injectors {
		revision := cmp.Or(o.Revision, mesh.DefaultRevision)
		if ns != nil && !slices.Contains(out, revision) &&
			slices.ContainsFunc(o.Webhooks, func(w snapshot.InjectorWebhook) bool { return w.Selects(ns.Labels, p.Labels) }) {
			out = append(out, revision)
		}
	}
	return out
}

// tagOf returns the tag of an image, without the name of Istio's variants. It returns "" for an
// image without a tag or with a digest.
func tagOf(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	_, tag, _ := strings.Cut(name, ":")
	if strings.Contains(name, "@") {
		return ""
	}
	return strings.TrimSuffix(strings.TrimSuffix(tag, "-distroless"), "-debug")
}

// retried is the longest time between two tries of Kubernetes to create a pod.
const retried = 20 * time.Minute

// persists reports whether the cause of an Event may still be there: it is young, and no pod of the
// object was created since.
func (m *checker) persists(f *snapshot.CreationFailure) bool {
	if !f.Last.IsZero() && m.Now.Sub(f.Last) > retried {
		return false
	}
	return !slices.ContainsFunc(m.workloads[f.Namespace], func(p *snapshot.Pod) bool {
		return p.Cluster == f.Cluster && p.Injection != nil && p.Injection.Owner == f.Owner && p.Created.After(f.Last)
	})
}

// refusedPods finds pods that the webhook of an injector refuses.
func (m *checker) refusedPods(f *snapshot.CreationFailure, of snapshot.Key) {
	if !strings.Contains(f.Reason, "sidecar-injector") {
		return
	}
	_, reason, found := strings.Cut(f.Reason, "denied the request: ")
	fix := m.kubectl(f.Cluster, f.Namespace) + " edit " + resource(f.Owner)
	message := "the injector refuses its pods: "
	if !found {
		reason, fix = f.Reason, m.kubectl(f.Cluster, m.Snapshot.Mesh.RootNamespace)+" get deployments,pods,services -l app=istiod"
		message = "its pods are not created, because the API server does not get an answer of the injector: "
	}
	m.findKeyFix(codes.InjectionRefused, of, fix, "", message+strings.TrimSpace(shortened(reason)))
}
