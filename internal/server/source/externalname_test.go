package source_test

import (
	"fmt"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestExternalNameOfThisMachine: names of the proxy's own machine and of metadata
// services are reported, also in the control plane's own cluster.
func TestExternalNameOfThisMachine(t *testing.T) {
	for name, want := range map[string]string{
		"example.com":                "",
		"web.shop.svc.cluster.local": "",
		"192.0.2.1":                  "",
		"localhost":                  "spec.externalName: localhost is a loopback name: proxies do not route calls there",
		"a.LOCALHOST.":               "spec.externalName: a.LOCALHOST is a loopback name: proxies do not route calls there",
		"127.0.0.1":                  "spec.externalName: 127.0.0.1 is a loopback address: proxies do not route calls there",
		"0.0.0.0":                    "spec.externalName: 0.0.0.0 is the unspecified address: proxies do not route calls there",
		"169.254.169.254":            "spec.externalName: 169.254.169.254 is a link-local or metadata address: proxies do not route calls there",
		"100.100.100.200":            "spec.externalName: 100.100.100.200 is a link-local or metadata address: proxies do not route calls there",
		"ip6-loopback":               "spec.externalName: ip6-loopback is a loopback name: proxies do not route calls there",
		"0x7f.1":                     "spec.externalName: 0x7f.1 is a loopback name: proxies do not route calls there",
		"metadata.google.internal":   "spec.externalName: metadata.google.internal is a link-local or metadata name: proxies do not route calls there",
	} {
		doc := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: 'n'}\nspec: {type: ExternalName, externalName: %s}\n", name)
		r, err := (&source.Converter{Cluster: "c"}).Decode(objects(t, doc)[0], snapshot.Place{File: "in.yaml"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		for _, w := range r.Warnings {
			got += w.Error()
		}
		if got != want {
			t.Errorf("%s: warned of %q, want %q", name, got, want)
		}
	}
}
