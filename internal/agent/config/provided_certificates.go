package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

// Places of Istio's agent for identities that others provide. Paths are relative to the
// working directory, which is / in a container.
const (
	workloadSocketDir  = "./var/run/secrets/workload-spiffe-uds"
	workloadCertDir    = "./var/run/secrets/workload-spiffe-credentials"
	mountedCertDir     = "./etc/certs"
	workloadSocketName = "socket"
)

const (
	socketVariable      = "WORKLOAD_IDENTITY_SOCKET_FILE"
	mountedVariable     = "FILE_MOUNTED_CERTS"
	provisionedVariable = "PROV_CERT"
)

// identitySource resolves where the workload's certificate comes from: the socket of a SPIFFE
// agent, files, or the certificate authority, to which an earlier certificate may prove the
// identity.
func (r *resolver) identitySource(cfg *Config, in *Input) {
	r.unsupportedIdentity()
	live := func(path string) bool { return in.Live != nil && in.Live(path) }
	exists := func(f *workloadcert.Files) bool {
		return in.Exists != nil && in.Exists(f.Chain) && in.Exists(f.Key) && in.Exists(f.Roots)
	}
	name := r.lookup(socketVariable)
	if name != "" && (filepath.Base(name) != name || name == "." || name == "..") {
		r.errorf("%s=%q: workload identity socket file override must be a filename, not a path", socketVariable, name)
		return
	}
	socket := filepath.Join(workloadSocketDir, cmp.Or(name, workloadSocketName))
	mounted := r.boolean(setting{cmp.Or(r.lookup(mountedVariable), "false"), mountedVariable})
	provisioned := r.lookup(provisionedVariable)
	if mounted && provisioned != "" {
		r.errorf("%s and %s exclude each other: with mounted certificates, no other one is requested", mountedVariable, provisionedVariable)
	}
	inPod := cfg.InPod
	files := func(dir string) *workloadcert.Files {
		return &workloadcert.Files{
			Chain: filepath.Join(dir, bootstrap.ChainFile), Key: filepath.Join(dir, bootstrap.KeyFile),
			Roots: filepath.Join(dir, bootstrap.RootsFile), Mounted: inPod,
		}
	}
	switch {
	case live(socket):
		if cfg.NoEnvoy {
			r.errorf("the certificates at the socket %s are only for Envoy: leave out --no-envoy (or DISABLE_ENVOY)", socket)
		}
		cfg.WorkloadSocket, cfg.Direct = socket, true // only Envoy has this certificate
	case name != "" && name != workloadSocketName:
		r.errorf("%s=%q: agent configured for non-default SDS socket path: %s but no socket found", socketVariable, name, socket)
	case exists(files(workloadCertDir)):
		cfg.CertFiles = files(workloadCertDir)
	case mounted || exists(files(mountedCertDir)) && filepath.Clean(cfg.CertDir) != filepath.Clean(mountedCertDir) && provisioned == "":
		cfg.CertFiles = files(mountedCertDir)
	case provisioned != "":
		cfg.ProvisionedFiles = files(provisioned)
	}
	for _, f := range []*workloadcert.Files{cfg.CertFiles, cfg.ProvisionedFiles} {
		if f != nil && r.flags.RootCA == "" && r.lookup("CA_ROOT_CA") == "" && (f == cfg.CertFiles || exists(f)) {
			cfg.CARootFile = f.Roots
		}
	}
}

// unsupportedIdentity refuses the certificate authorities and credentials that only Istio's
// agent knows.
func (r *resolver) unsupportedIdentity() {
	for _, s := range []struct {
		variable, value, instead string
	}{
		{"CA_PROVIDER", "Citadel", "the agent asks authorities that speak Istio's protocol, such as meshctl serve, istiod and istio-csr (CA_ADDR)"},
		{"CREDENTIAL_FETCHER_TYPE", "JWT", "the agent reads its token from a file (--token)"},
	} {
		if v := r.lookup(s.variable); v != "" && v != s.value {
			r.errorf("%s=%q is not supported, only %s: %s", s.variable, v, s.value, s.instead)
		}
	}
	if v := r.lookup("PILOT_CERT_PROVIDER"); v == "none" {
		r.errorf("PILOT_CERT_PROVIDER=none is not supported: the agent verifies the control plane; name its roots with --root-ca")
	}
	for _, s := range [][2]string{
		{"ECC_CURVE", "P256"},
		{"ECC_SIGNATURE_ALGORITHM", "ECDSA"},
		{"PKCS8_KEY", "true"},
		{"WORKLOAD_RSA_KEY_SIZE", ""},
		{"ISTIO_META_CERT_SIGNER", ""},
	} {
		if v := r.lookup(s[0]); v != "" && !strings.EqualFold(v, s[1]) && !slices.Contains([]string{"false", "0"}, v) {
			r.warnf("%s has no effect here: keys are ECDSA P-256 in PKCS #8, and the control plane chooses the signer", s[0])
		}
	}
}
