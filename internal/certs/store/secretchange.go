package store

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

// SecretChange is a planned change of a CA Secret.
type SecretChange struct {
	cluster *ClusterSecrets
	name    string
	want    map[string][]byte
	have    *corev1.Secret // nil if it does not exist
}

// Plan reads the Secret and plans a change to exactly these files. It writes nothing.
func (c *ClusterSecrets) Plan(ctx context.Context, name string, want []files.File) (*SecretChange, error) {
	have, err := c.Get(ctx, name)
	return &SecretChange{cluster: c, name: name, want: dataOf(want), have: have}, err
}

// PlanLists reads the Secret, which must exist, and plans a change of its revocation
// lists by SetLists. It writes nothing.
func (c *ClusterSecrets) PlanLists(ctx context.Context, name string) (*SecretChange, error) {
	p, err := c.Plan(ctx, name, nil)
	switch {
	case err != nil:
		return nil, err
	case p.have == nil:
		return nil, c.Absent(name)
	}
	p.want = maps.Clone(p.have.Data)
	return p, nil
}

// Material returns the CA in the Secret before the change.
func (p *SecretChange) Material() *Material {
	return FromSecret(p.cluster.Place(p.name), "", p.have.Data)
}

// SetLists plans new revocation lists.
func (p *SecretChange) SetLists(pem []byte) { p.want[CRLFile] = pem }

// Refuse returns an error if only force should make the change: the Secret holds
// another CA, or revocation lists that would be lost.
func (p *SecretChange) Refuse() error {
	if p.have == nil || len(p.have.Data) == 0 {
		return nil
	}
	place := p.cluster.Place(p.name)
	was, is := p.signers()
	if was == nil {
		return fmt.Errorf("%s holds no CA that can be read, but other data", place)
	}
	if is == nil || !certs.SameKey(was.PublicKey, is.PublicKey) {
		return fmt.Errorf("%s holds another CA, %s", place, verify.Describe(was))
	}
	if lists := p.have.Data[CRLFile]; len(lists) > 0 && len(p.want[CRLFile]) == 0 {
		return fmt.Errorf("%s holds revocation lists in %s, which would be lost", place, CRLFile)
	}
	return nil
}

// signers returns the signing certificates before and after the change, nil if there
// is none.
func (p *SecretChange) signers() (was, is *x509.Certificate) {
	if p.have != nil {
		was, _, _ = FromSecret("", "", p.have.Data).Certificates()
	}
	is, _, _ = FromSecret("", "", p.want).Certificates()
	return was, is
}

// Unchanged reports whether the change has no effect.
func (p *SecretChange) Unchanged() bool {
	return p.have != nil && maps.EqualFunc(p.have.Data, p.want, bytes.Equal)
}

// String describes the change in one line.
func (p *SecretChange) String() string {
	place := p.cluster.Place(p.name)
	was, is := p.signers()
	switch {
	case p.Unchanged():
		return place + " is up to date"
	case p.have == nil:
		return fmt.Sprintf("%s: created with %s, roots %s", place, verify.Describe(is), strings.Join(p.roots(p.want), ", "))
	}
	var changes []string
	if was == nil || !was.Equal(is) {
		before := "nothing that can be read"
		if was != nil {
			before = verify.Describe(was)
		}
		changes = append(changes, "signer "+before+" becomes "+verify.Describe(is))
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

// roots returns the names of the trusted roots.
func (p *SecretChange) roots(data map[string][]byte) []string {
	_, _, roots := FromSecret("", "", data).Certificates()
	out := make([]string, len(roots))
	for i, r := range roots {
		out[i] = verify.Describe(r)
	}
	return out
}

// Write writes the Secret unless it changed since Plan. See ClusterSecrets.Write.
func (p *SecretChange) Write(ctx context.Context, dryRun bool) error {
	if p.Unchanged() {
		return nil
	}
	_, err := p.cluster.Write(ctx, p.name, p.have, p.want, dryRun)
	return err
}
