package remotesecret

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/meshctl/meshctl/internal/mesh"
)

// soon is the time before its end from which Check warns of a credential.
const soon = 7 * 24 * time.Hour

// providerOIDC is the only accepted auth provider. Only its id-token is used.
const providerOIDC = "oidc"

// Options of Check.
type Options struct {
	Now time.Time
	// InPod is set if the control plane runs in a pod. Loopback addresses are then
	// refused; elsewhere they are a warning.
	InPod bool
	Allow Allow
}

// Check returns the faults of a cluster's kubeconfig. For a cluster with Err, that is
// the only finding.
func Check(c *Cluster, o Options) []Finding {
	j := judge{c: c, o: o}
	if c.Err != nil {
		j.add(Unreadable, "", "%v", c.Err)
		return j.findings
	}
	j.server()
	j.ca()
	j.files()
	j.plugins()
	j.credential()
	slices.SortStableFunc(j.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	return j.findings
}

// NewFinding returns a finding that Check cannot have, as it sends no request.
func NewFinding(c *Cluster, code Code, reason string) Finding {
	j := judge{c: c}
	return *j.add(code, "", "%s", reason)
}

// Repeated returns a warning for each kubeconfig of a cluster that an earlier kubeconfig
// also has. A control plane uses one of them.
func Repeated(clusters []Cluster) []Finding {
	first := map[mesh.ClusterID]*Cluster{}
	var findings []Finding
	for i := range clusters {
		c := &clusters[i]
		if c.ID == "" {
			continue
		}
		other := first[c.ID]
		if other == nil {
			first[c.ID] = c
			continue
		}
		j := judge{c: c}
		j.add(RepeatedCluster, "", "%s has the same cluster: a control plane uses only one of the two", other.Place)
		findings = append(findings, j.findings...)
	}
	return findings
}

type judge struct {
	c        *Cluster
	o        Options
	findings []Finding
}

func (j *judge) add(code Code, field, format string, args ...any) *Finding {
	k := kinds()[code]
	f := Finding{
		Severity: k.severity, Code: code, Cluster: j.c.ID, Place: j.c.Place, Field: field,
		Reason: fmt.Sprintf(format, args...), Fix: k.fix,
	}
	if field != "" {
		f.Line = j.c.doc.LineOf(field)
	}
	if slices.Contains(Allowable(), code) && j.o.Allow.Has(j.c.ID, code) {
		f.Severity, f.Allowed = Warning, true
	}
	j.findings = append(j.findings, f)
	return &j.findings[len(j.findings)-1]
}

func (j *judge) server() {
	s, at := j.c.Server, j.c.serverAt
	u, err := url.Parse(s.Server)
	switch {
	case s.Server != "" && !strings.Contains(s.Server, "://"):
		j.add(BadServer, at+".server", "server %q has no https://", clip(s.Server))
	case err != nil, u.Host == "", u.Scheme != "https" && u.Scheme != "http":
		j.add(BadServer, at+".server", "server %q is no URL of an API server", clip(s.Server))
	case u.User != nil:
		j.add(BadServer, at+".server", "server holds a user name")
	case u.Scheme == "http":
		j.add(Plaintext, at+".server", "plaintext is not allowed: anyone on the network path could read the credential")
	}
	if err == nil {
		j.host(u.Hostname(), at+".server")
	}
	if s.InsecureSkipTLSVerify {
		j.add(Insecure, at+".insecure-skip-tls-verify", "insecure-skip-tls-verify is not allowed: anybody could be the server")
	}
	if s.ProxyURL != "" {
		j.add(ProxyURL, at+".proxy-url", "proxy-url is not allowed: it chooses where the control plane connects to")
	}
}

// IsLoopback reports whether the host of the URL is a loopback address or name.
func IsLoopback(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	kind := mesh.HostKindOf(u.Hostname())
	return kind == mesh.AddressLoopback || kind == mesh.AddressUnspecified
}

// host checks a literal address or name. Package dial checks the addresses of a name
// when it connects.
func (j *judge) host(host, field string) {
	switch kind := mesh.HostKindOf(host); kind {
	case mesh.AddressLoopback, mesh.AddressUnspecified:
		f := j.add(Loopback, field, "server %s is a loopback address, so probably not the API server", host)
		if !j.o.InPod {
			f.Severity, f.Allowed = Warning, false
		}
	case mesh.AddressLinkLocal, mesh.AddressMetadata, mesh.AddressMulticast:
		j.add(LinkLocal, field, "server %s is not allowed: its address is of kind %s", host, kind)
	case mesh.AddressOrdinary:
	}
}

func (j *judge) ca() {
	s, at := j.c.Server, j.c.serverAt
	if s.CertificateAuthority != "" {
		j.add(CAFile, at+".certificate-authority", "certificateAuthority is not allowed: it names a file of the control plane")
	}
	data := s.CertificateAuthorityData
	if len(data) == 0 {
		if s.CertificateAuthority == "" && !s.InsecureSkipTLSVerify {
			j.add(NoCA, at, "there is no CA: the roots of the control plane's system decide whom it trusts")
		}
		return
	}
	field := at + ".certificate-authority-data"
	certs, err := parsePEM(data)
	if err != nil {
		j.add(BadCA, field, "the CA %v", err)
		return
	}
	usable := 0
	for _, cert := range certs {
		if j.o.Now.Before(cert.NotAfter) {
			usable++
		}
	}
	if usable == 0 {
		j.add(CertificateExpired, field, "the CA ended at %s", certs[len(certs)-1].NotAfter.UTC().Format(time.RFC3339))
	}
}

func parsePEM(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	whole := text
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot be read: %w", err)
		}
		certs = append(certs, cert)
	}
	if certs == nil {
		if bytes.Contains(decodeBase64(whole), []byte("-----BEGIN")) {
			return nil, errors.New("is in base64 twice: encode it once")
		}
		return nil, errors.New("holds no PEM certificate")
	}
	return certs, nil
}

// decodeBase64 returns what a text in base64, which may have several lines, encodes, or nil.
func decodeBase64(text []byte) []byte {
	decoded, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		return nil
	}
	return decoded
}

func (j *judge) files() {
	u, at := j.c.User, j.c.userAt
	const because = "is not allowed: it names a file of the control plane"
	if u.TokenFile != "" {
		j.add(TokenFile, at+".tokenFile", "tokenFile %s", because)
	}
	if u.ClientKey != "" {
		j.add(ClientKeyFile, at+".client-key", "clientKey %s", because)
	}
	if u.ClientCertificate != "" {
		j.add(ClientCertificateFile, at+".client-certificate", "clientCertificate %s", because)
	}
}

func (j *judge) plugins() {
	u, at := j.c.User, j.c.userAt
	if u.Exec != nil {
		j.add(Exec, at+".exec", "exec is not allowed: it would run a command where the control plane runs")
	}
	if p := u.AuthProvider; p != nil {
		field := at + ".auth-provider"
		switch {
		case p.Name != providerOIDC:
			j.add(AuthProviderName, field, "auth provider %s is not allowed", clip(p.Name))
		case p.Config["idp-certificate-authority"] != "":
			j.add(CAFile, field+".config.idp-certificate-authority",
				"idp-certificate-authority is not allowed: it names a file of the control plane")
		default:
			j.add(OIDCNotRenewed, field, "the id-token of auth provider oidc is used until it ends, and not renewed")
		}
	}
	for field, given := range map[string]bool{
		"as": u.Impersonate != "", "as-uid": u.ImpersonateUID != "",
		"as-groups": len(u.ImpersonateGroups) > 0, "as-user-extra": len(u.ImpersonateUserExtra) > 0,
	} {
		if given {
			j.add(Impersonation, at+"."+field, "%s is not allowed: the credential would act as another user", field)
		}
	}
}

func (j *judge) credential() {
	u, at := &j.c.User, j.c.userAt
	if u.Username != "" || u.Password != "" {
		j.add(Password, at+".username", "the user has a password")
	}
	hasPair := len(u.ClientCertificateData) > 0 || len(u.ClientKeyData) > 0
	switch {
	case j.c.BearerToken() != "":
		j.token(at + ".token")
	case !hasPair && u.Username == "" && u.TokenFile == "" && u.Exec == nil && u.ClientCertificate == "":
		j.add(NoCredential, at, "the user has no credential that can be used")
	}
	if hasPair && u.ClientKey == "" && u.ClientCertificate == "" {
		j.pair(at)
	}
}

func (j *judge) token(field string) {
	token := j.c.BearerToken()
	if strings.ContainsFunc(token, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		j.add(BadToken, field, "the token has a line break or a space: API servers reject every request with it")
		return
	}
	claims, err := ReadToken(token)
	if err != nil {
		if _, err := ReadToken(string(decodeBase64([]byte(token)))); err == nil {
			j.add(BadToken, field, "the token is in base64: a kubeconfig has the token as it is")
		}
	}
	if err != nil || claims.Expiry.IsZero() {
		return // tokens may be opaque, and without an end
	}
	late := soon
	if life := claims.Expiry.Sub(claims.IssuedAt); j.c.Renewed && !claims.IssuedAt.IsZero() {
		late = life / 6 // renewal is due at a third
	}
	j.expiry(field, "token", claims.Expiry, late, TokenExpired, TokenExpiresSoon)
}

// expiry adds a finding if a part of the credential has expired, or will within late.
func (j *judge) expiry(field, what string, end time.Time, late time.Duration, expired, expiresSoon Code) {
	switch left := end.Sub(j.o.Now); {
	case left <= 0:
		j.add(expired, field, "the %s ended at %s", what, end.UTC().Format(time.RFC3339))
	case left < late:
		j.add(expiresSoon, field, "the %s ends at %s", what, end.UTC().Format(time.RFC3339))
	}
}

func (j *judge) pair(at string) {
	u, field := &j.c.User, at+".client-certificate-data"
	if _, err := tls.X509KeyPair(u.ClientCertificateData, u.ClientKeyData); err != nil {
		j.add(BadCertificate, field, "client certificate and key cannot be used together")
		return
	}
	certs, err := parsePEM(u.ClientCertificateData)
	if err != nil {
		j.add(BadCertificate, field, "the client certificate %v", err)
		return
	}
	j.expiry(field, "client certificate", certs[0].NotAfter, soon, CertificateExpired, CertificateExpiresSoon)
}
