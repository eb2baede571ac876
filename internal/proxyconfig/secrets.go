package proxyconfig

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/output"
)

// Secret is one certificate or trust bundle from SDS.
type Secret struct {
	Name string
	// State is ACTIVE, WARMING, or UNINITIALIZED if Envoy has not received the secret.
	State string
	// Cert is the first certificate; nil if there is none or it cannot be parsed.
	Cert *x509.Certificate
	// TrustDomain is the trust domain of the certificate's SPIFFE id or of the bundle.
	TrustDomain string
	// PEM is the whole chain or bundle; nil without one.
	PEM []byte
}

// Secrets are the secrets of a config dump.
type Secrets struct {
	// Items has warming secrets first, then active ones, each in the order of the dump. A
	// bundle of several trust domains has one item for each.
	Items []Secret
	// Resource is the section as proto JSON: an object with the lists
	// dynamicActiveSecrets, dynamicWarmingSecrets and staticSecrets that are not empty.
	// Private keys are redacted.
	Resource SecretsResource
	// Static are the secrets of the bootstrap, without a State.
	Static []Secret
}

// SecretsResource is the JSON form of Secrets.
type SecretsResource struct {
	Static  []jsontext.Value `json:"staticSecrets,omitempty"`
	Active  []jsontext.Value `json:"dynamicActiveSecrets,omitempty"`
	Warming []jsontext.Value `json:"dynamicWarmingSecrets,omitempty"`
}

var secretSection = section{
	what:    "secrets",
	typeURL: "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
	paths: map[string][]string{
		"static_secrets":          {},
		"dynamic_active_secrets":  {},
		"dynamic_warming_secrets": {},
	},
}

// States of a secret.
const (
	secretActive        = "ACTIVE"
	secretWarming       = "WARMING"
	secretUninitialized = "UNINITIALIZED"
)

// ReadSecrets reads the secrets of a config dump.
func ReadSecrets(r io.Reader) (*Secrets, error) { return readSecrets(r, secretSection.read) }

// ReadSecretsResource reads secrets in the JSON form of a SecretsResource.
func ReadSecretsResource(r io.Reader) (*Secrets, error) {
	return readSecrets(r, secretSection.readAlone)
}

// IsSecretsResource reports whether a text begins like the JSON form of a SecretsResource
// and like no other input.
func IsSecretsResource(data []byte) bool {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	if tok, err := d.ReadToken(); err != nil || tok.Kind() != jsontext.KindBeginObject {
		return false
	}
	tok, err := d.ReadToken()
	if err != nil || tok.Kind() != jsontext.KindString {
		return false
	}
	_, known := secretSection.paths[snakeCase(tok.String())]
	return known
}

type readSection = func(io.Reader, func(list string, raw jsontext.Value) error) error

func readSecrets(r io.Reader, read readSection) (*Secrets, error) {
	s := new(Secrets)
	err := read(r, s.add)
	s.sort()
	return s, err
}

func (s *Secrets) add(list string, raw jsontext.Value) error {
	resource, err := protoJSON(raw, (*adminv3.SecretsConfigDump_DynamicSecret)(nil))
	if err != nil {
		return err
	}
	m := new(adminv3.SecretsConfigDump_DynamicSecret)
	if err := decode(raw, m); err != nil {
		return err
	}
	switch list {
	case "static_secrets":
		s.Resource.Static = append(s.Resource.Static, resource)
		s.Static, err = appendSecret(s.Static, m, "")
	case "dynamic_active_secrets":
		s.Resource.Active = append(s.Resource.Active, resource)
		s.Items, err = appendSecret(s.Items, m, secretActive)
	default:
		s.Resource.Warming = append(s.Resource.Warming, resource)
		s.Items, err = appendSecret(s.Items, m, secretWarming)
	}
	return err
}

// sort puts active secrets behind those that are warming.
func (s *Secrets) sort() {
	rank := func(s *Secret) int {
		if s.State == secretActive {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(s.Items, func(a, b Secret) int { return rank(&a) - rank(&b) })
}

func appendSecret(to []Secret, m *adminv3.SecretsConfigDump_DynamicSecret, state string) ([]Secret, error) {
	secret := new(tlsv3.Secret)
	if m.GetSecret() != nil {
		if err := m.GetSecret().UnmarshalTo(secret); err != nil {
			return to, fmt.Errorf("secret %q: %w", m.GetName(), err)
		}
	}
	validation := secret.GetValidationContext()
	spiffe := new(tlsv3.SPIFFECertValidatorConfig)
	if c := validation.GetCustomValidatorConfig().GetTypedConfig(); c.MessageIs(spiffe) {
		if err := c.UnmarshalTo(spiffe); err != nil {
			return to, fmt.Errorf("secret %q: %w", m.GetName(), err)
		}
		for _, td := range spiffe.GetTrustDomains() {
			data := inline(td.GetTrustBundle())
			to = append(to, Secret{
				Name: m.GetName(), State: state,
				Cert: firstCertificate(data), TrustDomain: td.GetName(), PEM: data,
			})
		}
		return to, nil
	}
	source := secret.GetTlsCertificate().GetCertificateChain()
	if source == nil {
		source = validation.GetTrustedCa()
	}
	if secret.GetType() == nil && state == secretWarming {
		state = secretUninitialized
	}
	data := inline(source)
	item := Secret{Name: m.GetName(), State: state, Cert: firstCertificate(data), PEM: data}
	if item.Cert != nil {
		item.TrustDomain = trustDomain(item.Cert)
	}
	return append(to, item), nil
}

// inline returns data that is in the dump itself.
func inline(source *corev3.DataSource) []byte {
	if data := source.GetInlineBytes(); data != nil {
		return data
	}
	return []byte(source.GetInlineString())
}

// firstCertificate returns the first certificate of a PEM bundle, nil if it cannot be
// parsed.
func firstCertificate(data []byte) *x509.Certificate {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return cert
}

func trustDomain(cert *x509.Certificate) string {
	for _, uri := range cert.URIs {
		if uri.Scheme == "spiffe" {
			return uri.Host
		}
	}
	return ""
}

// SecretTable returns secrets in Istio's columns, with the validity of certificates at
// now. The column TRUST DOMAIN is there if every secret has one.
func SecretTable(items []Secret, now time.Time) *output.Table {
	t := &output.Table{Header: []string{"RESOURCE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"}}
	domains := len(items) > 0 && !slices.ContainsFunc(items, func(s Secret) bool { return s.TrustDomain == "" })
	if domains {
		t.Header = append(t.Header, "TRUST DOMAIN")
	}
	for _, s := range items {
		row := []string{s.Name, "", s.State, "false", "", "", ""}
		if c := s.Cert; c != nil {
			valid := !now.Before(c.NotBefore) && !now.After(c.NotAfter)
			kind := "Cert Chain"
			if c.IsCA {
				kind = "CA"
			}
			row = []string{
				s.Name, kind, s.State, strconv.FormatBool(valid), fmt.Sprintf("%032x", c.SerialNumber),
				c.NotAfter.UTC().Format(time.RFC3339), c.NotBefore.UTC().Format(time.RFC3339),
			}
		}
		if domains {
			row = append(row, s.TrustDomain)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
