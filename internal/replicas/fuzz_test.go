package replicas

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzLease: no Lease leads to another namespace or exceeds the bounds.
func FuzzLease(f *testing.F) {
	f.Add("r", "ns/pod-0", "east", "127.0.0.1:8080,[::1]:8080", `{"clusters":[{"id":"west","state":"synced","credential":"ab"}],"left":3}`)
	f.Add("r", "other/pod-0", "east\n", "example.com:80,127.0.0.1:0,127.0.0.1", `{"clusters":[{"id":"\u001b[0m","state":"x"}],"left":-1}`)
	f.Add("", "ns/", "", ",", `{`)
	f.Add("r", "ns/../x", "", "10.0.0.1:1", `{"clusters":null}`)
	f.Fuzz(func(t *testing.T, holder, pod, cluster, addresses, clusters string) {
		a, err := announcementOf(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "ns", Annotations: map[string]string{
				AnnotationPod: pod, annotationCluster: cluster, annotationAddresses: addresses, annotationClusters: clusters,
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
		})
		if err != nil {
			return
		}
		if !printable(a.Replica) || a.Cluster != "" && !printable(string(a.Cluster)) || a.Left < 0 {
			t.Errorf("%+v", a)
		}
		if a.Pod != "" && (!strings.HasPrefix(a.Pod, "ns/") || strings.Count(a.Pod, "/") != 1) {
			t.Errorf("pod %q", a.Pod)
		}
		if len(a.Addresses) > maxAddresses || len(a.Clusters) > maxDigest || a.port() == 0 {
			t.Errorf("%d addresses, %d clusters, port %d", len(a.Addresses), len(a.Clusters), a.port())
		}
		for _, c := range a.Clusters {
			if !printable(string(c.ID)) || !printable(c.State) {
				t.Errorf("%+v", c)
			}
		}
		if _, err := a.lease("ns"); err != nil {
			t.Error(err)
		}
	})
}
