package secrets

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

// Put is a Secret that is to hold the CA of a cluster.
type Put struct {
	cluster *Cluster
	name    string
	want    map[string][]byte
	have    *corev1.Secret // nil: not there
}

// Plan reads the Secret and returns how to have it hold the files and nothing
// else. Nothing is written yet.
func (c *Cluster) Plan(ctx context.Context, name string, want []files.File) (*Put, error) {
	p := &Put{cluster: c, name: name, want: map[string][]byte{}}
	for _, f := range want {
		p.want[f.Name] = f.Data
	}
	var err error
	p.have, err = c.get(ctx, name)
	return p, err
}

// Held reads the Secret, which must hold the CA of the cluster, to have keys of it
// written anew with SetLists. Nothing is written yet.
func (c *Cluster) Held(ctx context.Context, name string) (*Put, error) {
	p, err := c.Plan(ctx, name, nil)
	switch {
	case err != nil:
		return nil, err
	case p.have == nil:
		return nil, c.absent(name)
	}
	p.want = maps.Clone(p.have.Data)
	return p, nil
}

// Material is the CA in the Secret as it is. Its place and that of its lists are
// for people.
func (p *Put) Material() (m *store.Material, place, lists string) {
	place = p.cluster.place(p.name)
	return store.FromSecret(place, "", p.have.Data), place, place + ", " + store.CRLFile
}

// SetLists has the Secret that Held has read hold these revocation lists.
func (p *Put) SetLists(pem []byte) { p.want[store.CRLFile] = pem }

// Refuse returns why the Secret is not to be written unless a person insists:
// it holds another CA, or revocation lists that would be lost.
func (p *Put) Refuse() error {
	if p.have == nil || len(p.have.Data) == 0 {
		return nil
	}
	place := p.cluster.place(p.name)
	was, is := p.signers()
	if was == nil {
		return fmt.Errorf("%s holds no CA that can be read, but other data", place)
	}
	if !samePublicKey(was, is) {
		return fmt.Errorf("%s holds another CA, %s", place, describe(was))
	}
	if lists := p.have.Data[store.CRLFile]; len(lists) > 0 && len(p.want[store.CRLFile]) == 0 {
		return fmt.Errorf("%s holds revocation lists in %s, which would be lost", place, store.CRLFile)
	}
	return nil
}

// signers are what signs by the Secret as it is and as it is to be; nil where
// there is none.
func (p *Put) signers() (was, is *x509.Certificate) {
	first := func(data map[string][]byte) *x509.Certificate {
		signer, _, _ := store.FromSecret("", "", data).Certificates()
		if len(signer) == 0 {
			return nil
		}
		return signer[0]
	}
	if p.have != nil {
		was = first(p.have.Data)
	}
	return was, first(p.want)
}

func samePublicKey(a, b *x509.Certificate) bool {
	key, ok := a.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && b != nil && key.Equal(b.PublicKey)
}

func describe(c *x509.Certificate) string {
	return fmt.Sprintf("%s (%s)", verify.Name(c), verify.Short(c))
}

// Unchanged reports whether the Secret is as it is to be.
func (p *Put) Unchanged() bool {
	return p.have != nil && maps.EqualFunc(p.have.Data, p.want, bytes.Equal)
}

// String says what Write does, in one line.
func (p *Put) String() string {
	place := p.cluster.place(p.name)
	was, is := p.signers()
	switch {
	case p.Unchanged():
		return place + " is as it is to be"
	case p.have == nil:
		return fmt.Sprintf("%s: created with %s, roots %s", place, describe(is), strings.Join(p.roots(p.want), ", "))
	}
	var changes []string
	if was == nil || !was.Equal(is) {
		before := "nothing that can be read"
		if was != nil {
			before = describe(was)
		}
		changes = append(changes, "signer "+before+" becomes "+describe(is))
	}
	before, after := p.roots(p.have.Data), p.roots(p.want)
	add := func(what string, list, without []string) {
		list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(without, s) })
		if len(list) > 0 {
			changes = append(changes, what+" "+strings.Join(list, ", "))
		}
	}
	add("trusts also", after, before)
	add("trusts no longer", before, after)
	keys := func(m map[string][]byte) []string { return slices.Sorted(maps.Keys(m)) }
	add("new keys", keys(p.want), keys(p.have.Data))
	add("takes out", keys(p.have.Data), keys(p.want))
	if len(changes) == 0 {
		other := slices.DeleteFunc(keys(p.want), func(k string) bool { return bytes.Equal(p.want[k], p.have.Data[k]) })
		changes = []string{"the same signer and roots, other " + strings.Join(other, ", ")}
	}
	return place + ": " + strings.Join(changes, "; ")
}

// roots are the trusted roots of a Secret's data, for people.
func (p *Put) roots(data map[string][]byte) []string {
	_, _, roots := store.FromSecret("", "", data).Certificates()
	out := make([]string, len(roots))
	for i, r := range roots {
		out[i] = describe(r)
	}
	return out
}

// Write writes the Secret, all of its data at once, unless somebody has written
// it since Plan. Labels and annotations stay. With dryRun the API server checks
// everything and keeps nothing.
func (p *Put) Write(ctx context.Context, dryRun bool) error {
	if p.Unchanged() {
		return nil
	}
	var dry []string
	if dryRun {
		dry = []string{metav1.DryRunAll}
	}
	api := p.cluster.core.Secrets(p.cluster.Namespace)
	var err error
	if p.have == nil {
		_, err = api.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: p.cluster.Namespace}, Type: corev1.SecretTypeOpaque, Data: p.want,
		}, metav1.CreateOptions{FieldManager: fieldManager, DryRun: dry})
	} else {
		next := p.have.DeepCopy() // with its resource version
		next.Data = p.want
		_, err = api.Update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager, DryRun: dry})
	}
	if err != nil {
		return p.cluster.writeError(p.name, p.have != nil, err)
	}
	return nil
}
