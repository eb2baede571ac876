package store

import (
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/test/kube"
)

// newClusterSecrets returns a namespace with the CA of cluster1 in its Secret.
func newClusterSecrets(t *testing.T) *ClusterSecrets {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	api := kube.Shared(t, "secrets")
	c, err := Connect("cluster1", "cluster1", api.Namespace(t, "mesh"), api.Config())
	if err != nil {
		t.Fatal(err)
	}
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := SecretFiles(root, nil, LayoutIstio)
	if err != nil {
		t.Fatal(err)
	}
	change, err := c.Plan(t.Context(), CACerts, set)
	if err != nil {
		t.Fatal(err)
	}
	if err := change.Write(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWriteConflict: Write keeps a Secret that changed since Plan.
func TestWriteConflict(t *testing.T) {
	t.Parallel()
	c := newClusterSecrets(t)
	have, err := c.Get(t.Context(), CACerts)
	if err != nil {
		t.Fatal(err)
	}
	put := &SecretChange{cluster: c, name: CACerts, have: have, want: map[string][]byte{"x": nil}}
	twice := &SecretChange{cluster: c, name: CACerts, have: have, want: map[string][]byte{"y": nil}}
	if err := put.Write(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := twice.Write(t.Context(), false); err == nil || !strings.Contains(err.Error(), "at the same time") {
		t.Errorf("the second write: %v", err)
	}
	fresh := &SecretChange{cluster: c, name: CACerts, want: map[string][]byte{"z": nil}}
	if err := fresh.Write(t.Context(), false); err == nil || !strings.Contains(err.Error(), "at the same time") {
		t.Errorf("a third, which knows of none: %v", err)
	}
	if now, err := c.Get(t.Context(), CACerts); err != nil || len(now.Data) != 1 || !slices.Contains(slices.Collect(maps.Keys(now.Data)), "x") {
		t.Errorf("the first write did not stay: %v", err)
	}
}

// TestListsConflict: of two concurrent writes of lists, the second is refused. Other
// data of the Secret stays.
func TestListsConflict(t *testing.T) {
	t.Parallel()
	c := newClusterSecrets(t)
	var both []*SecretChange
	for range 2 {
		p, err := c.PlanLists(t.Context(), CACerts)
		if err != nil {
			t.Fatal(err)
		}
		p.SetLists([]byte("lists"))
		both = append(both, p)
	}
	if m := both[0].Material(); len(both[0].have.Data) != len(both[0].want)-1 {
		t.Errorf("it is to hold %d keys; %v", len(both[0].want), m)
	}
	if err := both[0].Write(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := both[0].Write(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := both[1].Write(t.Context(), false); err == nil || !strings.Contains(err.Error(), "at the same time") {
		t.Errorf("the second write: %v", err)
	}
	now, err := c.Get(t.Context(), CACerts)
	if err != nil || string(now.Data[CRLFile]) != "lists" || len(now.Data[CertFile]) == 0 {
		t.Errorf("%v, keys %v", err, slices.Sorted(maps.Keys(now.Data)))
	}
	if _, err := c.PlanLists(t.Context(), "nothing"); err == nil || !strings.Contains(err.Error(), "not found; make it with") {
		t.Errorf("no Secret: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	c := newClusterSecrets(t)
	have, err := c.Get(t.Context(), CACerts)
	if err != nil {
		t.Fatal(err)
	}
	with := func(key, value string) map[string][]byte {
		out := map[string][]byte{key: []byte(value)}
		for k, v := range have.Data {
			if k != key {
				out[k] = v
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		have, want map[string][]byte
		refused    string
	}{
		"the same":      {have.Data, have.Data, ""},
		"nothing there": {nil, have.Data, ""},
		"junk":          {with(CertFile, "junk"), have.Data, "holds no CA that can be read"},
		"lists dropped": {with(CRLFile, "lists"), have.Data, "holds revocation lists in ca-crl.pem, which would be lost"},
		"lists kept":    {with(CRLFile, "lists"), with(CRLFile, "lists"), ""},
	} {
		before := have.DeepCopy()
		before.Data = tc.have
		err := (&SecretChange{cluster: c, name: CACerts, have: before, want: tc.want}).Refuse()
		if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
