package remotesecret

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Code names a kind of finding.
type Code string

// Codes of refused kubeconfigs. All but AuthProviderName can be allowed.
const (
	Exec                  Code = "exec"
	TokenFile             Code = "token-file"
	ClientKeyFile         Code = "client-key-file"
	ClientCertificateFile Code = "client-certificate-file"
	CAFile                Code = "ca-file"
	AuthProviderName      Code = "auth-provider"
	Insecure              Code = "insecure"
	Impersonation         Code = "impersonation"
	ProxyURL              Code = "proxy-url"
	LinkLocal             Code = "link-local"
	Loopback              Code = "loopback"
	Plaintext             Code = "plaintext"
)

// Codes of kubeconfigs that cannot work.
const (
	Unreadable         Code = "unreadable"
	BadServer          Code = "bad-server"
	BadCA              Code = "bad-ca"
	BadCertificate     Code = "bad-certificate"
	BadToken           Code = "bad-token"
	NoCredential       Code = "no-credential"
	TokenExpired       Code = "token-expired"
	CertificateExpired Code = "certificate-expired"
	CredentialRefused  Code = "credential-refused"
	MissingRights      Code = "missing-rights"
)

// Codes of warnings.
const (
	NoCA                   Code = "no-ca"
	TokenExpiresSoon       Code = "token-expires-soon"
	CertificateExpiresSoon Code = "certificate-expires-soon"
	Password               Code = "password"
	OIDCNotRenewed         Code = "oidc-not-renewed"
	RepeatedCluster        Code = "repeated-cluster"
)

// Severity is the severity of a finding.
type Severity string

// Severities.
const (
	Refused Severity = "refused" // the control plane does not use the kubeconfig
	Broken  Severity = "broken"  // the control plane uses it, but it cannot work
	Warning Severity = "warning"
)

// kind has the common fields of all findings of a code.
type kind struct {
	severity Severity
	fix      string
}

// kinds has the severity and the fix of each code.
var kinds = sync.OnceValue(func() map[Code]kind {
	const (
		makeOne = "write the secret with meshctl create-remote-secret"
		rotate  = "make a new credential with meshctl remote-secret rotate"
		https   = "name the server as https://HOST:PORT"
		address = "name an address that the control plane reaches; create-remote-secret --api-server auto finds one"
	)
	return map[Code]kind{
		Exec:                   {Refused, "give the user a token; " + makeOne},
		AuthProviderName:       {Refused, "give the user a token; " + makeOne},
		TokenFile:              {Refused, "put the token itself under token"},
		ClientKeyFile:          {Refused, "put the key itself under client-key-data, or use a token"},
		ClientCertificateFile:  {Refused, "put the certificate itself under client-certificate-data, or use a token"},
		CAFile:                 {Refused, "put the certificate itself under certificate-authority-data"},
		Insecure:               {Refused, "put the CA that signs the server's certificate under certificate-authority-data; create-remote-secret --ca auto finds it"},
		Impersonation:          {Refused, "give the service account the roles it needs"},
		ProxyURL:               {Refused, "name an address that the control plane reaches by itself"},
		LinkLocal:              {Refused, address},
		Loopback:               {Refused, address},
		Plaintext:              {Refused, https},
		Unreadable:             {Broken, makeOne},
		NoCredential:           {Broken, makeOne},
		BadCA:                  {Broken, makeOne},
		BadCertificate:         {Broken, makeOne},
		BadToken:               {Broken, makeOne},
		BadServer:              {Broken, https},
		TokenExpired:           {Broken, rotate},
		CertificateExpired:     {Broken, rotate},
		CredentialRefused:      {Broken, rotate},
		MissingRights:          {Broken, "grant the rights: run meshctl create-remote-secret for the cluster again, with the same --namespaces"},
		NoCA:                   {Warning, "put the CA that signs the server's certificate under certificate-authority-data"},
		TokenExpiresSoon:       {Warning, rotate},
		CertificateExpiresSoon: {Warning, rotate},
		Password:               {Warning, "give the user a token: API servers no longer accept passwords"},
		OIDCNotRenewed:         {Warning, "give the user a token of a service account, which meshctl can renew"},
		RepeatedCluster:        {Warning, "delete one of the two, if one control plane reads both"},
	}
})

// Finding is one fault of a kubeconfig.
type Finding struct {
	Severity Severity       `json:"severity"`
	Code     Code           `json:"code"`
	Cluster  mesh.ClusterID `json:"cluster"`
	Place    string         `json:"place"`
	// Field and Line are the place in the kubeconfig, if any.
	Field  string `json:"field,omitzero"`
	Line   int    `json:"line,omitzero"`
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
	// Allowed is set if the fault is allowed for this cluster.
	Allowed bool `json:"allowed,omitzero"`
}

// RefusedError is the error for a refused kubeconfig.
type RefusedError struct{ Findings []Finding }

func (e *RefusedError) Error() string {
	var refused []string
	for _, f := range e.Findings {
		refused = append(refused, fmt.Sprintf("%s (%s)", f.Reason, f.Field))
	}
	return "kubeconfig is not allowed: " + strings.Join(refused, "; ")
}

// Refuse returns a *RefusedError with the findings of severity Refused, or nil.
func Refuse(findings []Finding) error {
	refused := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Severity != Refused })
	if len(refused) == 0 {
		return nil
	}
	return &RefusedError{refused}
}

// Allowable returns the codes that can be allowed, in the order of help texts.
func Allowable() []Code {
	return []Code{
		Exec, TokenFile, ClientKeyFile, ClientCertificateFile, CAFile, Insecure, Impersonation, ProxyURL, LinkLocal,
		Loopback, Plaintext,
	}
}

// Allow has the allowed codes of each cluster.
type Allow map[mesh.ClusterID][]Code

// ParseAllow parses values of the form CLUSTER=CODE. A cluster may occur repeatedly.
func ParseAllow(values []string) (Allow, error) {
	allow := Allow{}
	for _, value := range values {
		cluster, code, ok := strings.Cut(value, "=")
		id := mesh.ClusterID(cluster)
		switch {
		case !ok || !id.Valid():
			return nil, fmt.Errorf("%q: want CLUSTER=CODE", value)
		case !slices.Contains(Allowable(), Code(code)):
			return nil, fmt.Errorf("%q: %q cannot be allowed; what can is %v", value, code, Allowable())
		}
		allow[id] = append(allow[id], Code(code))
	}
	return allow, nil
}

// Has reports whether the code is allowed for the cluster.
func (a Allow) Has(cluster mesh.ClusterID, code Code) bool { return slices.Contains(a[cluster], code) }
