package identity

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

func says(namespace, account string, cluster mesh.ClusterID, trustDomain string) proxy.Node {
	return proxy.Node{Namespace: namespace, ServiceAccount: account, Cluster: cluster, TrustDomain: trustDomain}
}

// TestCheckNode: the claims of a proxy must match its proved identity.
func TestCheckNode(t *testing.T) {
	t.Parallel()
	hello := caller("cluster.local", "sample", "helloworld", "east")
	unbound := caller("cluster.local", "sample", "helloworld", "")
	tests := map[string]struct {
		caller mesh.Caller
		claims proxy.Node
		want   string // "" is allowed
	}{
		"all said":                    {hello, says("sample", "helloworld", "east", ""), ""},
		"account not said":            {hello, says("sample", "", "east", ""), ""},
		"cluster not said":            {hello, says("sample", "helloworld", "", ""), ""},
		"caller's cluster not proved": {unbound, says("sample", "helloworld", "west", ""), ""},
		"trust domain said":           {hello, says("sample", "helloworld", "east", "cluster.local"), ""},
		"other trust domain":          {hello, says("sample", "helloworld", "east", "b.example"), `is not of trust domain "b.example"`},
		"other namespace": {
			hello,
			says("prod", "helloworld", "east", ""),
			"authorization failed: no identities (spiffe://cluster.local/ns/sample/sa/helloworld) matched prod/helloworld",
		},
		"other account": {
			hello,
			says("sample", "admin", "east", ""),
			"authorization failed: no identities (spiffe://cluster.local/ns/sample/sa/helloworld) matched sample/admin",
		},
		"empty namespace":            {hello, says("", "helloworld", "east", ""), "matched /helloworld"},
		"nobody with empty claims":   {mesh.Caller{}, proxy.Node{}, "authorization failed"},
		"other cluster":              {hello, says("sample", "helloworld", "west", ""), `is of cluster "east", not of cluster "west"`},
		"cluster in other case":      {hello, says("sample", "helloworld", "East", ""), `not of cluster "East"`},
		"namespace that is a prefix": {hello, says("sampl", "helloworld", "east", ""), "matched sampl/"},
		"huge namespace":             {hello, says(strings.Repeat("a", 1<<20), "helloworld", "east", ""), "matched aaa"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := CheckNode(tt.caller, tt.claims)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			st := status.Convert(err)
			if st.Code() != codes.PermissionDenied || !strings.Contains(st.Message(), tt.want) || len(st.Message()) > 1000 {
				t.Errorf("error %v, want PermissionDenied and %q", err, tt.want)
			}
		})
	}
}
