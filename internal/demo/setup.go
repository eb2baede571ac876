package demo

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	certstore "github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// Paths below the run directory.
const (
	caDir     = "ca" // the root, and a folder for each cluster
	issuerDir = "issuer"
	stateDir  = "state"
	podsDir   = "pods" // a folder for each pod, the root of its file system
)

// Paths in a pod, as Kubernetes mounts them and the agent finds them.
const (
	podToken    = "var/run/secrets/tokens/istio-token"
	podRootCert = "var/run/secrets/istio/root-cert.pem"

	podBootstrap = "etc/istio/proxy/envoy-rev.json" // written by the agent
)

const (
	certTTL       = 365 * 24 * time.Hour
	tokenTTL      = 30 * 24 * time.Hour
	tokenAudience = "istio-ca"
)

func (m *Mesh) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

func (m *Mesh) logPath(name string) string { return filepath.Join(m.logs, name+".log") }

// writeTrust makes a root, an intermediate and a token issuer for each cluster, and a token
// for each pod.
func (m *Mesh) writeTrust() error {
	now := m.opts.Now()
	root, err := certs.NewRoot(caSpec("Root CA"), now, m.opts.Rand)
	if err != nil {
		return fmt.Errorf("make the root CA: %w", err)
	}
	if _, err := certstore.SaveRoot(m.path(caDir), root, false); err != nil {
		return err
	}
	var intermediates []certstore.Intermediate
	for _, c := range m.clusters {
		a, err := root.NewIntermediate(c.id, caSpec("Intermediate CA"), now, m.opts.Rand)
		if err != nil {
			return fmt.Errorf("make the CA of %s: %w", c.id, err)
		}
		intermediates = append(intermediates, certstore.Intermediate{Cluster: c.id, Authority: a})
	}
	if _, err := certstore.SaveIntermediates(m.path(caDir), intermediates, false); err != nil {
		return err
	}
	for _, c := range m.clusters {
		if err := m.writeTokens(c, certs.EncodeCerts(root.Cert)); err != nil {
			return err
		}
	}
	return nil
}

func caSpec(commonName string) certs.CASpec {
	return certs.CASpec{
		Algorithm: certs.ECDSAP256, Organization: "meshctl demo", CommonName: commonName, TTL: certTTL,
	}
}

// writeTokens writes the files that Kubernetes would mount into each pod of the cluster: its
// token and the root of the mesh.
func (m *Mesh) writeTokens(c *cluster, root []byte) error {
	issuer, err := token.GenerateIssuer("")
	if err != nil {
		return fmt.Errorf("make the token issuer of %s: %w", c.id, err)
	}
	if err := token.SaveIssuer(m.path(issuerDir, string(c.id)), issuer, false); err != nil {
		return err
	}
	for _, p := range c.pods() {
		raw, err := issuer.Create(token.Claims{
			Namespace: p.namespace, ServiceAccount: p.account, Pod: p.workload,
			Audiences: []string{tokenAudience}, TTL: tokenTTL,
		}, m.opts.Now())
		if err != nil {
			return fmt.Errorf("make the token of the %s: %w", p.role, err)
		}
		err = files.WriteAll(m.podDir(p), []files.File{
			{Name: podToken, Data: []byte(raw), Mode: files.Secret},
			{Name: podRootCert, Data: root, Mode: files.Public},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Mesh) podDir(p pod) string { return m.path(podsDir, p.slug()) }

// controlCommand returns the command of the control plane of c, which also reads the other
// cluster.
func (m *Mesh) controlCommand(c *cluster) command {
	id := string(c.id)
	args := []string{
		"serve",
		"--cluster-id", id,
		"--network", string(c.network),
		"--mesh-id", meshID,
		"--config-dir", m.Dir(c.id),
		"--ca-dir", m.path(caDir, id),
		"--state-dir", m.path(stateDir, id),
	}
	for _, other := range m.clusters {
		if other != c {
			args = append(args, "--remote-dir", string(other.id)+"="+m.Dir(other.id))
		}
	}
	args = append(args,
		"--token-issuer", id+"="+m.path(issuerDir, id),
		"--secure-grpc-addr", c.xdsAddr().String(),
		"--grpc-addr", c.plainXDSAddr().String(),
		"--http-addr", c.httpAddr().String(),
		"--monitoring-addr", c.metricsAddr().String(),
	)
	return command{
		role: "control plane of " + id,
		args: args,
		env:  append(m.environment(m.dir), "POD_NAME=istiod-"+id), // its name in meshctl ps
		dir:  m.dir,
		log:  m.logPath(id + "-" + controlPlane),
	}
}

// agentCommand returns the command of the agent of c's pod p, in the pod's folder and with the
// environment that Istio's injector sets.
func (m *Mesh) agentCommand(c *cluster, p pod) (command, error) {
	dir := m.podDir(p)
	labels, err := json.Marshal(p.labels)
	if err != nil {
		return command{}, err
	}
	discovery := c.xdsAddr()
	config, err := json.Marshal(map[string]any{
		"discoveryAddress":         discovery,
		"concurrency":              1,
		"meshId":                   meshID,
		"drainDuration":            "1s",
		"terminationDrainDuration": "0s",
	})
	if err != nil {
		return command{}, err
	}
	env := append(m.environment(dir),
		"POD_NAME="+p.workload,
		"POD_NAMESPACE="+p.namespace,
		"SERVICE_ACCOUNT="+p.account,
		"INSTANCE_IP="+p.ip.String(),
		"TRUST_DOMAIN="+mesh.DefaultTrustDomain,
		"CA_ADDR="+discovery.String(),
		"PROXY_CONFIG="+string(config),
		"ISTIO_DELTA_XDS="+strconv.FormatBool(!m.opts.SotW),
		"ISTIO_META_CLUSTER_ID="+string(p.cluster),
		"ISTIO_META_NETWORK="+string(p.network),
		"ISTIO_META_WORKLOAD_NAME="+p.workload,
		"ISTIO_METAJSON_LABELS="+string(labels),
	)
	if m.opts.CertTTL > 0 {
		env = append(env, "SECRET_TTL="+m.opts.CertTTL.String())
	}
	if p.nodeType == mesh.Router {
		env = append(env, "ISTIO_META_REQUESTED_NETWORK_VIEW="+string(p.network))
	} else {
		env = append(env, "ISTIO_META_INTERCEPTION_MODE=NONE")
	}
	return command{
		role: "proxy of the " + p.role,
		args: []string{"agent", "--type", string(p.nodeType), "--bind-address", p.ip.String(), "--envoy", m.opts.Envoy},
		env:  env,
		dir:  dir,
		log:  m.logPath(p.slug()),
	}, nil
}

// environment returns the environment of a child: no MESHCTL_ or ISTIO_ variable and no
// configuration file of the user may change the demo. Control planes write their tokens where
// the user's commands look for them.
func (m *Mesh) environment(home string) []string {
	env := []string{"HOME=" + home}
	for _, name := range []string{"PATH", "TMPDIR", "GOCOVERDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
		if value, ok := m.opts.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	state, _ := m.opts.LookupEnv("XDG_STATE_HOME")
	if home, _ := m.opts.LookupEnv("HOME"); state == "" && filepath.IsAbs(home) {
		env = append(env, "XDG_STATE_HOME="+filepath.Join(home, ".local", "state"))
	}
	return env
}
