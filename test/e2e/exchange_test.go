package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestKeyExchangeBetweenEnvoys has the Envoys of a mesh of two clusters, and their
// gateways, talk by one key exchange after the other while they run: servers take no
// other, and clients reach all of them by new connections.
func TestKeyExchangeBetweenEnvoys(t *testing.T) {
	m := startMesh(t, false)
	clusters := []mesh.ClusterID{"cluster1", "cluster2"}
	for _, c := range clusters {
		replace(t, filepath.Join(m.Dir(c), "closing.yaml"), closing)
	}
	peer := peerOf(t, loadCA(t, filepath.Join(filepath.Dir(m.Dir("cluster1")), "ca", "cluster1")))
	for _, step := range []struct {
		name       string
		is, others []tls.CurveID
	}{
		{"X25519MLKEM768", []tls.CurveID{tls.X25519MLKEM768}, []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384}},
		{"P-384", []tls.CurveID{tls.CurveP384}, []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256}},
	} {
		for _, c := range clusters {
			setKeyExchange(t, filepath.Join(m.Dir(c), "2-mesh.yaml"), step.name)
		}
		for _, server := range []string{"127.1.0.11:5000", "127.2.0.11:5000"} {
			eventually(t, server+" takes "+step.name+" alone", func() error {
				if askAs(t, server, peer, step.others...) == nil {
					return errors.New("another one is taken")
				}
				return askAs(t, server, peer, step.is...)
			})
		}
		// A client may receive the change later than a server.
		for _, client := range m.Clients() {
			eventually(t, "the client of "+string(client.Cluster)+" reaches both clusters", func() error {
				from := make(map[string]int)
				for range 40 {
					answer, err := client.Get(t.Context())
					if err != nil {
						return err
					}
					from[answer.Version]++
				}
				if len(from) != 2 {
					return fmt.Errorf("answers come from %v", from)
				}
				return nil
			})
		}
	}
}

// setKeyExchange has MeshConfig name one key exchange, whatever it named before.
func setKeyExchange(t *testing.T, file, name string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	named := false
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "ecdhCurves") {
			continue
		}
		lines = append(lines, line)
		if strings.HasPrefix(line, "    rootNamespace:") {
			lines = append(lines, "    meshMTLS: {ecdhCurves: ["+name+"]}\n")
			named = true
		}
	}
	if !named {
		t.Fatalf("%s has no rootNamespace", file)
	}
	replace(t, file, strings.Join(lines, ""))
}
