package config

import (
	"cmp"
	"path/filepath"

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
	// existing returns how many of the files exist.
	existing := func(f *workloadcert.Files) (n int) {
		for _, name := range []string{f.Chain, f.Key, f.Roots} {
			if in.Exists != nil && in.Exists(name) {
				n++
			}
		}
		return n
	}
	exists := func(f *workloadcert.Files) bool { return existing(f) == 3 }
	name := r.lookup(socketVariable)
	if (setting{name, socketVariable}).isReported() {
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
	served, err := false, error(nil)
	if in.Served != nil {
		served, err = in.Served(socket)
	}
	switch {
	case err != nil: // another source would give a certificate of another authority
		r.errorf("the socket of a SPIFFE agent cannot be used: %w; start the SPIFFE agent, or remove the file to use another source of certificates", err)
	case served:
		if cfg.NoEnvoy {
			r.errorf("the certificates at the socket %s are only for Envoy: leave out --no-envoy (or DISABLE_ENVOY)", socket)
		}
		cfg.WorkloadSocket = socket
		if r.flags.RootCA == "" && r.lookup("CA_ROOT_CA") == "" && (in.Exists == nil || !in.Exists(cfg.CARootFile)) {
			cfg.CARootFile = "" // the socket has roots, too
		}
	case name != "" && name != workloadSocketName:
		r.errorf("%s=%q: agent configured for non-default SDS socket path: %s but no socket found", socketVariable, name, socket)
	case exists(files(workloadCertDir)):
		cfg.CertFiles = files(workloadCertDir)
	case existing(files(workloadCertDir)) > 0:
		r.errorf("%s lacks some of the files %s, %s and %s; add them, or remove the others to use another source of certificates",
			workloadCertDir, bootstrap.ChainFile, bootstrap.KeyFile, bootstrap.RootsFile)
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
