package harness

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// EnvoyTLS returns how an Envoy connects to a cluster in the bootstrap that its agent wrote.
func EnvoyTLS(bootstrap, cluster string) (*tls.Config, error) {
	data, err := os.ReadFile(bootstrap)
	if err != nil {
		return nil, err
	}
	type source struct {
		InlineString string `json:"inline_string"`
	}
	var b struct {
		StaticResources struct {
			Clusters []struct {
				Name            string
				TransportSocket struct {
					TypedConfig struct {
						CommonTLSContext struct {
							TLSCertificates []struct {
								CertificateChain source `json:"certificate_chain"`
								PrivateKey       source `json:"private_key"`
							} `json:"tls_certificates"`
						} `json:"common_tls_context"`
					} `json:"typed_config"`
				} `json:"transport_socket"`
			}
		} `json:"static_resources"`
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, err
	}
	for _, c := range b.StaticResources.Clusters {
		all := c.TransportSocket.TypedConfig.CommonTLSContext.TLSCertificates
		if c.Name != cluster || len(all) == 0 {
			continue
		}
		pair, err := tls.X509KeyPair([]byte(all[0].CertificateChain.InlineString), []byte(all[0].PrivateKey.InlineString))
		if err != nil {
			return nil, err
		}
		own := x509.NewCertPool()
		own.AddCert(pair.Leaf)
		return &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
			// As Envoy does: the certificate counts, not its name.
			InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				if len(s.PeerCertificates) == 0 {
					return errors.New("the agent has no certificate")
				}
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: own})
				return err
			},
		}, nil
	}
	return nil, fmt.Errorf("the cluster %s in %s has no certificate", cluster, bootstrap)
}
