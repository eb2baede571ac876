package kube

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// MergedKubeconfig writes a kubeconfig with a context for each cluster, by its name.
// The first one is the current context.
func MergedKubeconfig(t *testing.T, clusters ...*Cluster) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	for _, c := range clusters {
		one, err := clientcmd.Load(c.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		name := c.Name()
		all.Clusters[name], all.AuthInfos[name], all.Contexts[name] = one.Clusters[name], one.AuthInfos[name], one.Contexts[name]
	}
	all.CurrentContext = clusters[0].Name()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*all, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// ReplicaLease writes the Lease of a replica of the control plane that serves its status
// pages at an address and has read cluster2 with a credential.
func (c *Cluster) ReplicaLease(t *testing.T, namespace, name, address, credential string) {
	t.Helper()
	c.Apply(t, fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease,
metadata: {name: meshctl-replica-%s, namespace: %s, labels: {meshctl.io/replica: "true"}, annotations: {
  meshctl.io/status-addresses: %q, meshctl.io/clusters: '{"clusters":[{"id":"cluster2","state":"synced","credential":%q}]}'}},
spec: {holderIdentity: %s, renewTime: %q}}`, name, namespace, address, credential, name,
		time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")))
}

// WaitOutput waits until the output of kubectl contains a text.
func (c *Cluster) WaitOutput(t *testing.T, want string, args ...string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out := c.Kubectl(t, "", args...)
		if strings.Contains(out, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("kubectl %v writes %s, want %s in it", args, out, want)
		}
	}
}
