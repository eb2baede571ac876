package config

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestIdentitySource: the socket of a SPIFFE agent has precedence over files, and these over
// the certificate authority.
func TestIdentitySource(t *testing.T) {
	dir := func(d string) []string {
		return []string{filepath.Join(d, "cert-chain.pem"), filepath.Join(d, "key.pem"), filepath.Join(d, "root-cert.pem")}
	}
	credentials, mounted := dir("var/run/secrets/workload-spiffe-credentials"), dir("etc/certs")
	socket := "var/run/secrets/workload-spiffe-uds/socket"
	for name, tc := range map[string]struct {
		env, files, live []string
		// The socket, the chain of the files, and the chain of the provisioned files.
		socket, chain, provisioned string
		roots                      string
	}{
		"authority":                {},
		"socket":                   {files: credentials, live: []string{socket}, socket: socket},
		"socket, roots in a file":  {files: []string{filepath.Clean(DefaultRootFile)}, live: []string{socket}, socket: socket, roots: DefaultRootFile},
		"another name":             {env: []string{"WORKLOAD_IDENTITY_SOCKET_FILE=other"}, live: []string{"var/run/secrets/workload-spiffe-uds/other"}, socket: "var/run/secrets/workload-spiffe-uds/other"},
		"credentials":              {files: append(credentials, mounted...), chain: credentials[0], roots: credentials[2]},
		"etc/certs":                {files: mounted, chain: mounted[0], roots: mounted[2]},
		"own output":               {env: []string{"OUTPUT_CERTS=./etc/certs"}, files: mounted},
		"mounted":                  {env: []string{"FILE_MOUNTED_CERTS=true"}, chain: mounted[0], roots: mounted[2]},
		"mounted, other roots":     {env: []string{"FILE_MOUNTED_CERTS=true", "CA_ROOT_CA=r.pem"}, chain: mounted[0], roots: "r.pem"},
		"provisioned":              {env: []string{"PROV_CERT=/etc/prov"}, files: dir("/etc/prov"), provisioned: "/etc/prov/cert-chain.pem", roots: "/etc/prov/root-cert.pem"},
		"provisioned, not there":   {env: []string{"PROV_CERT=/etc/prov"}, provisioned: "/etc/prov/cert-chain.pem"},
		"provisioned in etc/certs": {env: []string{"PROV_CERT=./etc/certs", "OUTPUT_CERTS=./etc/certs"}, files: mounted, provisioned: mounted[0], roots: mounted[2]},
	} {
		t.Run(name, func(t *testing.T) {
			in := func(list []string) func(string) bool {
				return func(path string) bool {
					for _, l := range list {
						if filepath.Clean(path) == l {
							return true
						}
					}
					return false
				}
			}
			cfg, _, err := Resolve(Input{Environ: append(base(), tc.env...), Exists: in(tc.files), Served: func(path string) (bool, error) { return in(tc.live)(path), nil }})
			if err != nil {
				t.Fatal(err)
			}
			chain, provisioned := "", ""
			if cfg.CertFiles != nil {
				chain = cfg.CertFiles.Chain
			}
			if cfg.ProvisionedFiles != nil {
				provisioned = cfg.ProvisionedFiles.Chain
			}
			if tc.roots == "" && tc.socket == "" {
				tc.roots = DefaultRootFile
			}
			if cfg.WorkloadSocket != tc.socket || chain != tc.chain || provisioned != tc.provisioned || cfg.CARootFile != tc.roots {
				t.Errorf("got socket %q, files %q, provisioned %q, roots %q", cfg.WorkloadSocket, chain, provisioned, cfg.CARootFile)
			}
		})
	}
	for env, want := range map[string]string{
		"WORKLOAD_IDENTITY_SOCKET_FILE=a/b":     "must be a filename, not a path",
		"WORKLOAD_IDENTITY_SOCKET_FILE=..":      "must be a filename, not a path",
		"WORKLOAD_IDENTITY_SOCKET_FILE=other":   "no socket found",
		"FILE_MOUNTED_CERTS=perhaps":            "FILE_MOUNTED_CERTS",
		"FILE_MOUNTED_CERTS=1 PROV_CERT=a":      "exclude each other",
		"CA_PROVIDER=GoogleCAS":                 `CA_PROVIDER="GoogleCAS" is not supported, only Citadel`,
		"CREDENTIAL_FETCHER_TYPE=GoogleCompute": "only JWT",
		"PILOT_CERT_PROVIDER=none":              "--root-ca",
	} {
		_, _, err := Resolve(Input{Environ: append(base(), strings.Fields(env)...)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", env, err, want)
		}
	}
	_, warnings, err := Resolve(Input{Environ: append(base(), "PKCS8_KEY=true", "ECC_CURVE=P256", "ECC_SIGNATURE_ALGORITHM=ECDSA", "WORKLOAD_RSA_KEY_SIZE=4096")})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "WORKLOAD_RSA_KEY_SIZE") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	_, _, err = Resolve(Input{Environ: append(base(), "DISABLE_ENVOY=true"), Served: func(string) (bool, error) { return true, nil }})
	if err == nil || !strings.Contains(err.Error(), "only for Envoy") {
		t.Errorf("a socket without Envoy: %v", err)
	}
	// A source that is there but cannot be used is never replaced by another authority.
	_, _, err = Resolve(Input{
		Environ: base(), Exists: func(string) bool { return true },
		Served: func(string) (bool, error) { return false, errors.New("socket x: no process serves it") },
	})
	if err == nil || !strings.Contains(err.Error(), "the socket of a SPIFFE agent cannot be used: socket x: no process serves it") {
		t.Errorf("a socket that no process serves: %v", err)
	}
	for _, some := range [][]string{{"cert-chain.pem"}, {"cert-chain.pem", "key.pem"}, {"root-cert.pem", "key.pem"}} {
		_, _, err = Resolve(Input{Environ: base(), Exists: func(path string) bool {
			return filepath.Dir(path) == "var/run/secrets/workload-spiffe-credentials" && slices.Contains(some, filepath.Base(path))
		}})
		if err == nil || !strings.Contains(err.Error(), "workload-spiffe-credentials lacks some of the files") {
			t.Errorf("%v: %v", some, err)
		}
	}
}
