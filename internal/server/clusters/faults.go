package clusters

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// maxFaults bounds the reported faults of one reader.
const maxFaults = 20

// Fault is a reason why a cluster, or a part of it, is not read.
type Fault struct {
	Cause  string // as in Report
	Reason string
	// Fix is the command that mends the fault, if there is one. Contexts of kubeconfigs
	// are placeholders, because a control plane does not know their names.
	Fix string `json:",omitempty"`
	// Credentials reports that only gateways without a control plane in the cluster suffer from it.
	Credentials bool `json:",omitempty"`
}

// ContextOf begins a placeholder, before the name of the cluster.
const ContextOf = "CONTEXT_OF_"

// faultsOf returns the faults of reading a Kubernetes API, the worst first: one for each
// cause, and of missing rights one for each namespace.
func faultsOf(st *kube.Status) []Fault {
	type kind struct {
		cause     kube.Cause
		namespace string
		optional  bool
	}
	type found struct {
		kind
		since time.Time
		text  string
		more  []string // further resources
		// credentials reports that these are the Secrets and ConfigMaps of gateways.
		credentials bool
	}
	var all []*found
	for i := range st.Resources {
		r := &st.Resources[i]
		if r.Error == "" || r.Unread {
			continue
		}
		k := kind{cause: r.Cause}
		if r.Cause == kube.CauseForbidden {
			k.namespace, k.optional = r.Namespace, r.Optional
		}
		at := slices.IndexFunc(all, func(f *found) bool { return f.kind == k })
		switch {
		case at < 0:
			all = append(all, &found{kind: k, since: r.Since, text: r.Error, credentials: k.optional && isCredential(r.Resource)})
		case k.cause == kube.CauseForbidden && !slices.Contains(all[at].more, r.Resource):
			all[at].more = append(all[at].more, r.Resource)
			all[at].credentials = all[at].credentials && isCredential(r.Resource)
		}
	}
	slices.SortStableFunc(all, func(a, b *found) int {
		return cmp.Or(cmp.Compare(rank(a.cause, a.optional), rank(b.cause, b.optional)), a.since.Compare(b.since))
	})
	var out []Fault
	for _, f := range all {
		if len(f.more) > 0 {
			f.text += "; nor may it read " + strings.Join(f.more, ", ")
		}
		if f.namespace != "" && !strings.Contains(f.text, f.namespace) {
			f.text = "namespace " + f.namespace + ": " + f.text
		}
		out = append(out, Fault{Cause: string(f.cause), Reason: f.text, Credentials: f.credentials})
	}
	if more := len(out) - maxFaults; more > 0 {
		out = append(out[:maxFaults], Fault{Cause: out[maxFaults].Cause, Reason: fmt.Sprintf("and %d more", more)})
	}
	return out
}

// isCredential reports whether a resource holds the credentials of gateways.
func isCredential(resource string) bool { return resource == "secrets" || resource == "configmaps" }

// withoutCredentials drops the faults that do not concern a cluster with a control plane of its own, which
// gives the gateways there their certificates.
func (s *Status) withoutCredentials() {
	faults := slices.DeleteFunc(slices.Clone(s.Faults), func(f Fault) bool { return f.Credentials })
	if len(faults) == len(s.Faults) {
		return
	}
	if s.Faults, s.Cause, s.Reason = faults, "", ""; len(faults) > 0 {
		s.Cause, s.Reason = faults[0].Cause, faults[0].Reason
	}
}

// rank orders causes, the worst first.
func rank(cause kube.Cause, optional bool) int {
	switch {
	case cause == kube.CauseUnauthorized:
		return 0
	case cause != kube.CauseForbidden:
		return 1
	case !optional:
		return 2
	}
	return 3
}

// addFaults completes the faults of a cluster: those of the reader in use, of its
// credential by the clock, and of the next reader. A loss comes first, then a new
// credential that cannot be used, then missing rights. If only a later one is there,
// Cause and Reason report it.
func (s *Status) addFaults(own mesh.ClusterID, spec *Spec, next *clusterReader) {
	faults := slices.Clone(s.Faults)
	if s.Reason != "" && (len(faults) == 0 || faults[0].Reason != s.Reason) {
		faults = slices.DeleteFunc(faults, func(f Fault) bool { return strings.HasSuffix(s.Reason, f.Reason) })
		faults = slices.Insert(faults, 0, Fault{Cause: s.Cause, Reason: s.Reason})
	}
	if s.CredentialExpired && s.Cause != CauseExpired {
		faults = append(faults, Fault{Cause: CauseExpired, Reason: s.CredentialProblem})
	}
	if next != nil {
		if r := next.report(); r.Reason != "" {
			list := r.Faults
			if len(list) == 0 {
				list = []Fault{{Cause: r.Cause, Reason: r.Reason}}
			}
			for _, f := range list {
				f.Reason = fmt.Sprintf("the new credential %s cannot replace the old one, which stays in use: %s", next.registration.spec.Credential, f.Reason)
				faults = append(faults, f)
			}
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(missingRight(a), missingRight(b)) })
	for i := range faults {
		faults[i].Fix = fix(s, own, spec, faults[i].Cause)
	}
	if s.Faults = faults; len(faults) > 0 {
		s.Cause, s.Reason = faults[0].Cause, faults[0].Reason
	}
}

func missingRight(f Fault) int {
	if f.Cause == string(kube.CauseForbidden) {
		return 1
	}
	return 0
}

// Repair has what the commands that mend the access to the cluster of a remote secret need.
type Repair struct {
	Cluster, Own mesh.ClusterID
	Secret       string // <namespace>/<name>
	// Namespaces and CredentialNamespaces are those of remotesecret.Cluster.
	Namespaces, CredentialNamespaces []string
}

// fix returns the command that mends a fault of a cluster.
func fix(s *Status, own mesh.ClusterID, spec *Spec, cause string) string {
	if s.OriginKind != OriginSecret {
		return ""
	}
	return (&Repair{s.Cluster, own, s.Origin, spec.Namespaces, spec.CredentialNamespaces}).Command(cause)
}

// Command returns the command that mends a fault, if there is one.
func (r *Repair) Command(cause string) string {
	here, there, in := ContextOf+string(r.Own), ContextOf+string(r.Cluster), ""
	if namespace, _, _ := strings.Cut(r.Secret, "/"); namespace != mesh.DefaultSystemNamespace {
		in = " --istioNamespace " + namespace
	}
	switch cause {
	case string(kube.CauseUnauthorized), CauseExpired:
		return fmt.Sprintf("meshctl remote-secret rotate --name %s --context %s --to %s%s", r.Cluster, there, here, in)
	case string(kube.CauseForbidden):
		if len(r.Namespaces) > 0 {
			in += " --namespaces " + strings.Join(r.Namespaces, ",")
		}
		if len(r.CredentialNamespaces) > 0 {
			in += " --credential-namespaces " + strings.Join(r.CredentialNamespaces, ",")
		}
		return fmt.Sprintf("meshctl create-remote-secret --name %s --context %s --apply --to %s%s", r.Cluster, there, here, in)
	case string(kube.CauseTLS), string(kube.CauseName), string(kube.CauseAnswer):
		return fmt.Sprintf("meshctl create-remote-secret --name %s --context %s --api-server auto --apply --to %s%s", r.Cluster, there, here, in)
	}
	return ""
}
