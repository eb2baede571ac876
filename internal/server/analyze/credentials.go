package analyze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// expiresSoon bounds the time before the end of a certificate from which it is a finding. Certificates
// that live shorter are one in the last fifth of their life, because many programs renew them after
// two thirds.
const expiresSoon = 14 * 24 * time.Hour

// CredentialsOf returns the Secrets that Gateways of a mesh name, each in the places of the gateway's
// workloads, and the accounts of these workloads. The views are those of CheckClusters.
func CredentialsOf(views []*registry.Contents) (secrets []snapshot.Key, accounts []snapshot.Account) {
	for _, c := range views {
		if !slices.ContainsFunc(c.Snapshot.GatewayConfigs, func(gw *snapshot.Gateway) bool { return namesCredentials(snapshot.GatewayServers(gw)) }) {
			continue
		}
		m := newChecker(c, Options{
			Credential: func(k snapshot.Key) (*snapshot.Secret, bool) {
				if !slices.Contains(secrets, k) {
					secrets = append(secrets, k)
				}
				return nil, false
			},
			MayNotRead: func(a snapshot.Account) string {
				if !slices.Contains(accounts, a) {
					accounts = append(accounts, a)
				}
				return ""
			},
		})
		for _, gw := range c.Snapshot.GatewayConfigs {
			proxies := m.selected("", gw.Spec.GetSelector())
			servers := snapshot.GatewayServers(gw)
			for i := range servers {
				m.credentials(gw, "", servers[i].GetTls(), proxies)
			}
			m.accounts(gw, servers, proxies)
		}
	}
	return secrets, accounts
}

// namesCredentials reports whether some server has a certificate in a Secret.
func namesCredentials(servers []snapshot.GatewayServer) bool {
	return slices.ContainsFunc(servers, func(s snapshot.GatewayServer) bool {
		t := s.GetTls()
		return t != nil && !snapshot.PassesTLS(t) && (t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0)
	})
}

// accounts finds the workloads of a Gateway whose account gets no private keys.
func (m *checker) accounts(gw *snapshot.Gateway, servers []snapshot.GatewayServer, proxies []*snapshot.Pod) {
	if m.MayNotRead == nil || !namesCredentials(servers) {
		return
	}
	var asked []snapshot.Account
	for _, p := range proxies {
		a := snapshot.Account{Cluster: p.Cluster, Namespace: p.Namespace, Name: p.ServiceAccount}
		if slices.Contains(asked, a) {
			continue
		}
		asked = append(asked, a)
		why := m.MayNotRead(a)
		if why == "" {
			continue
		}
		kubectl := m.kubectl(a.Cluster, a.Namespace)
		fix := fmt.Sprintf("%s create role %s-secrets --verb=get,list,watch --resource=secrets; %[1]s create rolebinding %[2]s-secrets --role=%[2]s-secrets --serviceaccount=%[3]s:%[2]s",
			kubectl, a.Name, a.Namespace)
		m.findFix(codes.InvalidGatewayCredential, gw, fix, "spec.selector",
			"ServiceAccount %s/%s of its workload %s in cluster %s %s, so the gateway gets no certificate", a.Namespace, a.Name, p.Name, a.Cluster, why)
	}
}

// credentials checks the Secrets of a server. Each workload of the gateway needs them in its
// own cluster and namespace.
func (m *checker) credentials(gw *snapshot.Gateway, field string, t *networkingv1alpha3.ServerTLSSettings, proxies []*snapshot.Pod) {
	if t == nil || snapshot.PassesTLS(t) {
		return
	}
	clients := t.GetMode() == networkingv1alpha3.ServerTLSSettings_MUTUAL || t.GetMode() == networkingv1alpha3.ServerTLSSettings_OPTIONAL_MUTUAL
	if name := t.GetCredentialName(); name != "" {
		m.credential(gw, field+".credentialName", name, clients && t.GetCaCertCredentialName() == "", proxies)
	}
	for i, name := range t.GetCredentialNames() {
		m.credential(gw, at(field+".credentialNames", i), name, clients && i == 0 && t.GetCaCertCredentialName() == "", proxies)
	}
}

// location is a place of workloads of a gateway.
type location struct {
	cluster   mesh.ClusterID
	namespace string
}

// locationsOf returns the places of the workloads of a Gateway.
func locationsOf(gw *snapshot.Gateway, proxies []*snapshot.Pod) []location {
	var places []location
	for _, p := range proxies {
		if l := (location{p.Cluster, p.Namespace}); !slices.Contains(places, l) {
			places = append(places, l)
		}
	}
	if len(proxies) == 0 { // most gateways are in the namespace of their Gateway
		places = append(places, location{gw.Cluster, gw.Namespace})
	}
	return places
}

// keyIn returns the Secret that a credential names for workloads in a place. It may name the namespace.
func (l location) keyIn(credential string) snapshot.Key {
	name := strings.TrimPrefix(credential, "kubernetes://")
	if namespace, name, qualified := strings.Cut(name, "/"); qualified {
		return snapshot.Key{Cluster: l.cluster, Namespace: namespace, Name: name}
	}
	return snapshot.Key{Cluster: l.cluster, Namespace: l.namespace, Name: name}
}

// createSecret returns the command that makes the Secret of a server, with CA certificates for mutual TLS.
func (m *checker) createSecret(k snapshot.Key, clients bool) string {
	kubectl := m.kubectl(k.Cluster, k.Namespace)
	if clients {
		return fmt.Sprintf("%s create secret generic %s --from-file tls.crt=CERTIFICATE_FILE --from-file tls.key=KEY_FILE --from-file ca.crt=CA_FILE", kubectl, k.Name)
	}
	return fmt.Sprintf("%s create secret tls %s --cert CERTIFICATE_FILE --key KEY_FILE", kubectl, k.Name)
}

// replaceSecret returns the command that replaces the Secret. The type of a Secret cannot change, so it
// must be made anew.
func (m *checker) replaceSecret(k snapshot.Key, clients bool) string {
	return m.createSecret(k, clients) + " --dry-run=client -o yaml | kubectl" + m.flags(k.Cluster) + " replace --force -f -"
}

// copySecret returns the command that copies a Secret to the namespace of a gateway, and names it there.
func (m *checker) copySecret(gw *snapshot.Gateway, field string, k snapshot.Key, namespace string) string {
	if gw.ReadFrom().File != "" {
		return m.set(gw, field, k.Name)
	}
	return fmt.Sprintf("%s get secret %s -o yaml | sed -E '/^  (creationTimestamp|resourceVersion|uid): /d; s/^  namespace: .*/  namespace: %s/' | kubectl%s apply -f - && %s",
		m.kubectl(k.Cluster, k.Namespace), k.Name, namespace, m.flags(k.Cluster), m.set(gw, field, k.Name))
}

// credential checks one Secret. clients reports whether it must have CA certificates, too.
func (m *checker) credential(gw *snapshot.Gateway, field, credential string, clients bool, proxies []*snapshot.Pod) {
	places := locationsOf(gw, proxies)
	for _, l := range places {
		k := l.keyIn(credential)
		namespace, name := k.Namespace, k.Name
		if namespace != l.namespace && len(proxies) > 0 {
			m.findFix(codes.InvalidGatewayCredential, gw, m.copySecret(gw, field, k, l.namespace), field,
				"is in namespace %s, but the gateway is in namespace %s and gets only Secrets of its own namespace: TLS fails there", namespace, l.namespace)
			continue
		}
		secret, known := m.secretOf(l.cluster, namespace, name)
		ca, caKnown := secret, true
		if clients {
			var own *snapshot.Secret
			own, caKnown = m.secretOf(l.cluster, namespace, name+"-cacert")
			ca = cmp.Or(own, secret)
		}
		if !known {
			continue
		}
		of := fmt.Sprintf("Secret %s/%s of cluster %s", namespace, name, l.cluster)
		whole := clients && ca == secret
		create, replace := m.createSecret(k, whole), m.replaceSecret(k, whole)
		switch {
		case secret == nil && len(proxies) == 0 && (m.Credential != nil || m.anySecret(name)):
		case secret == nil:
			elsewhere := ""
			if gw.Namespace != namespace && len(proxies) > 0 {
				elsewhere = fmt.Sprintf("; a Secret in namespace %s, where the Gateway is, has no effect", gw.Namespace)
			}
			m.findFix(codes.ReferencedResourceNotFound, gw, create, field, "there is no Secret %s/%s in cluster %s, where the gateway is%s", namespace, name, l.cluster, elsewhere)
		case secret.Pair == nil:
			m.findFix(codes.InvalidGatewayCredential, gw, replace, field, "%s has no certificate: %s", of, secret.NoPair)
		case clients && caKnown && ca.CA == nil:
			m.findFix(codes.InvalidGatewayCredential, gw, replace, field, "%s has no CA certificates for clients: %s", of, ca.NoCA)
		default:
			m.validity(gw, field, of, replace, secret.Pair)
		}
	}
}

// validity checks that a certificate of a Gateway is valid, and for how long.
func (m *checker) validity(gw *snapshot.Gateway, field, of, fix string, p *snapshot.KeyPair) {
	left := p.NotAfter.Sub(m.Now)
	switch {
	case left < 0:
		m.findFix(codes.InvalidGatewayCredential, gw, fix, field, "the certificate in %s expired at %s", of, p.NotAfter.UTC().Format(time.RFC3339))
	case m.Now.Before(p.NotBefore):
		m.findFix(codes.InvalidGatewayCredential, gw, fix, field, "the certificate in %s is not valid before %s", of, p.NotBefore.UTC().Format(time.RFC3339))
	case left < min(expiresSoon, p.NotAfter.Sub(p.NotBefore)/5):
		if f := m.findFix(codes.InvalidGatewayCredential, gw, fix, field, "the certificate in %s expires at %s", of, p.NotAfter.UTC().Format(time.RFC3339)); f != nil {
			f.Level = codes.Warning
		}
	}
}

// secretOf returns a Secret, and whether it is known. It is nil if it does not exist.
func (m *checker) secretOf(c mesh.ClusterID, namespace, name string) (secret *snapshot.Secret, known bool) {
	switch {
	case m.Credential != nil:
		return m.Credential(snapshot.Key{Kind: snapshot.KindSecret, Cluster: c, Namespace: namespace, Name: name})
	case m.SecretsRead != nil && !m.SecretsRead(namespace):
		return nil, false
	}
	return m.secret(c, namespace, name), true
}

func (m *checker) secret(c mesh.ClusterID, namespace, name string) *snapshot.Secret {
	return m.Snapshot.Secrets.Get(snapshot.SecretKey(c, namespace, name))
}

// anySecret reports whether some namespace has a Secret of the name.
func (m *checker) anySecret(name string) bool {
	for _, s := range list[*snapshot.Secret](m, snapshot.KindSecret) {
		if s.Name == name {
			return true
		}
	}
	return false
}
