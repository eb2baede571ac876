package clusters

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	kubeaccess "github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// Kubernetes makes clusters that are read from their Kubernetes APIs.
type Kubernetes struct {
	// Allow is what the command line lets the kubeconfigs of clusters do; the
	// settings of clusters add to it.
	Allow remotesecret.Allow
	// InPod says that the control plane runs in a pod.
	InPod            bool
	SystemNamespace  string
	SecretNamespaces []string
	Limits           kube.Limits
	// Count is told of each change of an object of any of these APIs. May be nil.
	Count func(*source.Resource, source.Change)
	Log   *slog.Logger
	Now   func() time.Time
}

// Own is the access to the own cluster.
func (k *Kubernetes) Own(id mesh.ClusterID, config *rest.Config) Access {
	return Access{Config: config, NewSource: func() Source {
		return &api{&kube.Source{
			Cluster: id, Config: config, Configuration: true, SystemNamespace: k.SystemNamespace,
			SecretNamespaces: k.SecretNamespaces, Limits: k.Limits, Count: k.Count, Log: k.Log, Now: k.Now,
		}}
	}}
}

// Spec makes a cluster of what a remote secret or a file holds.
func (k *Kubernetes) Spec(c remotesecret.Cluster) Spec {
	s := Spec{ID: c.ID, Hash: c.Hash, Err: c.Err, Open: func(allow []string) (*Access, error) { return k.open(&c, allow) }}
	if c.Err != nil {
		return s
	}
	s.Credential = c.CredentialHash()
	s.TokenBegins, s.TokenEnds = c.Life()
	return s
}

func (k *Kubernetes) open(c *remotesecret.Cluster, allow []string) (*Access, error) {
	o := remotesecret.Options{Now: k.Now(), InPod: k.InPod, Allow: maps.Clone(k.Allow)}
	if len(allow) > 0 {
		values := make([]string, len(allow))
		for i, what := range allow {
			values[i] = string(c.ID) + "=" + what
		}
		more, err := remotesecret.ParseAllow(values)
		if err != nil {
			return nil, fmt.Errorf("settings of the cluster: %w", err)
		}
		if o.Allow == nil {
			o.Allow = make(remotesecret.Allow)
		}
		o.Allow[c.ID] = slices.Concat(o.Allow[c.ID], more[c.ID])
	}
	config, err := kubeaccess.Remote(c, kubeaccess.RemoteOptions{Options: o, UserAgent: "meshctl"})
	if err != nil {
		return nil, err
	}
	a := &Access{
		Config:    config,
		NewSource: func() Source { return k.remote(c, config) },
		Close:     func() { kubeaccess.Close(config) },
	}
	for _, f := range remotesecret.Check(c, o) {
		note := fmt.Sprintf("%s: %s", f.Code, f.Reason)
		if f.Allowed {
			note = "allowed: " + note
		}
		a.Notes = append(a.Notes, note)
	}
	return a, nil
}

// Reach makes the access to the cluster of a remote secret as its reading has
// it, with what the settings of the cluster allow. Close it when it is not
// used any more.
func (k *Kubernetes) Reach(c *remotesecret.Cluster, set mesh.ClusterSetting) (*rest.Config, error) {
	access, err := k.open(c, set.Allow)
	if err != nil {
		return nil, err
	}
	return access.Config, nil
}

// remote reads what the remote secret says that its credential may read.
func (k *Kubernetes) remote(c *remotesecret.Cluster, config *rest.Config) Source {
	secrets := k.SecretNamespaces
	if c.CredentialNamespaces != nil {
		secrets = c.CredentialNamespaces
	}
	return &api{&kube.Source{
		Cluster: c.ID, Config: config, SystemNamespace: k.SystemNamespace, Namespaces: c.Namespaces,
		SecretNamespaces: secrets, Limits: k.Limits, Count: k.Count, Log: k.Log, Now: k.Now,
	}}
}

// api is a cluster that is read from its Kubernetes API.
type api struct{ *kube.Source }

// maxReported bounds how many problems of one cluster are reported.
const maxReported = 100

// Report implements Source. The cluster is lost when some resource that was
// read is not followed any more; what is not installed is fine, and that what is
// optional may not be read is wrong, but no loss.
func (a *api) Report() Report {
	st := a.Status()
	r, forbidden := Report{Version: st.Version}, ""
	for i := range st.Resources {
		res := &st.Resources[i]
		if res.Heard.After(r.Heard) {
			r.Heard = res.Heard
		}
		if res.Error == "" {
			continue
		}
		if res.Optional && res.Cause == kube.CauseForbidden {
			forbidden = cmp.Or(forbidden, res.Error)
			continue
		}
		if r.LostSince.IsZero() || res.Since.Before(r.LostSince) {
			r.LostSince, r.Cause, r.Reason = res.Since, string(res.Cause), res.Error
		}
	}
	if r.LostSince.IsZero() && forbidden != "" {
		r.Cause, r.Reason = string(kube.CauseForbidden), forbidden
	}
	for _, text := range st.Errors() {
		if text != r.Reason {
			r.Problems = append(r.Problems, text)
		}
	}
	for _, p := range st.Problems {
		r.Problems = append(r.Problems, fmt.Sprintf("%s: %s", p.Object, strings.Join(p.Reasons, "; ")))
	}
	if more := len(r.Problems) - maxReported; more > 0 {
		r.Problems = append(r.Problems[:maxReported], fmt.Sprintf("and %d more", more))
	}
	return r
}
