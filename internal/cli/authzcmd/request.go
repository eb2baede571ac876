package authzcmd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
)

// requestFlags hold the flags that describe a request.
type requestFlags struct {
	principal, trustDomain  string
	port                    uint32
	method, host, path      string
	headers, claims         []string
	sourceIP, destinationIP string
	sni                     string
	tls, tcp                bool
}

func (f *requestFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.principal, "principal", "", "Identity of the client's certificate, a `principal` as in AuthorizationPolicies, spiffe://… or NAMESPACE/SERVICE-ACCOUNT (default: no TLS)")
	cli.Alias(fs, "principal", "from")
	fs.StringVar(&f.trustDomain, "trust-domain", mesh.DefaultTrustDomain, "Trust `domain` of a NAMESPACE/SERVICE-ACCOUNT")
	pccmd.PortVar(fs, &f.port, "`Port` of the workload, not of a Service (default the only one)")
	fs.StringVar(&f.method, "method", "GET", "HTTP `method`")
	fs.StringVar(&f.host, "host", "", "`Host` of the request (default unknown)")
	fs.StringVar(&f.path, "path", "/", "`Path` of the request, with query")
	fs.StringArrayVar(&f.headers, "header", nil, "A header, as `NAME=VALUE`; may be repeated")
	fs.StringArrayVar(&f.claims, "claim", nil, "A claim of a valid token, as `NAME=VALUE`, or NAME:=JSON; values of one name make a list; may be repeated")
	fs.StringVar(&f.sourceIP, "source-ip", "", "`Address` from which the connection comes (default unknown)")
	fs.StringVar(&f.destinationIP, "destination-ip", "", "`Address` of the workload (default unknown)")
	fs.StringVar(&f.sni, "sni", "", "Server `name` that a client with TLS requests")
	fs.BoolVar(&f.tls, "tls", false, "The client uses TLS without a certificate")
	fs.BoolVar(&f.tcp, "tcp", false, "The client sends no HTTP")
}

// request returns the request that the flags describe.
func (f *requestFlags) request() (*access.Request, error) {
	r := &access.Request{Port: f.port, SNI: f.sni, TLS: f.tls || f.principal != "", Host: f.host}
	if f.principal != "" {
		id, err := f.identity()
		if err != nil {
			return nil, cli.Usagef("--principal: %w", err)
		}
		r.Peer, r.ALPN = &access.Peer{URIs: []string{id}}, []string{"istio"}
	} else if f.tls {
		r.ALPN = []string{"h2", "http/1.1"}
	}
	for _, ip := range []struct {
		flag, value string
		to          *netip.Addr
	}{{"source-ip", f.sourceIP, &r.Source}, {"destination-ip", f.destinationIP, &r.Destination}} {
		if ip.value == "" {
			continue
		}
		parsed, err := netip.ParseAddr(ip.value)
		if err != nil {
			return nil, cli.Usagef("--%s %q is not an IP address", ip.flag, ip.value)
		}
		*ip.to = parsed.Unmap()
	}
	if f.tcp {
		if len(f.headers)+len(f.claims) > 0 {
			return nil, cli.Usagef("--tcp: a connection without HTTP has neither headers nor a token")
		}
		return r, nil
	}
	if f.method == "" || !strings.HasPrefix(f.path, "/") {
		return nil, cli.Usagef("want a --method, and a --path that begins with a slash")
	}
	r.Method, r.Path = f.method, f.path
	for _, text := range f.headers {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, cli.Usagef("--header %q: want NAME=VALUE", text)
		}
		r.Headers = append(r.Headers, access.Header{Name: name, Value: value})
	}
	var err error
	r.Claims, err = parseClaims(f.claims)
	return r, err
}

// identity returns the SPIFFE ID of the client.
func (f *requestFlags) identity() (string, error) {
	if strings.Contains(f.principal, "://") {
		_, err := mesh.ParseIdentity(f.principal)
		return f.principal, err
	}
	if strings.Contains(f.principal, "/ns/") { // without the scheme, as in AuthorizationPolicies
		id, err := mesh.ParseIdentity("spiffe://" + f.principal)
		return id.String(), err
	}
	namespace, account, ok := strings.Cut(f.principal, "/")
	if !ok {
		return "", fmt.Errorf("%q is neither spiffe://… nor NAMESPACE/SERVICE-ACCOUNT", f.principal)
	}
	id, err := mesh.ParseIdentity(mesh.Identity{TrustDomain: f.trustDomain, Namespace: namespace, ServiceAccount: account}.String())
	return id.String(), err
}

// parseClaims returns the claims of a token, nil for none.
func parseClaims(list []string) (map[string]any, error) {
	var claims map[string]any
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, cli.Usagef("--claim %q: want NAME=VALUE or NAME:=JSON", text)
		}
		var claim any = value
		if plain, isJSON := strings.CutSuffix(name, ":"); isJSON {
			name = plain
			if err := json.Unmarshal([]byte(value), &claim); err != nil {
				return nil, cli.Usagef("--claim %s: %q is not JSON: %w", name, value, err)
			}
		}
		if claims == nil {
			claims = map[string]any{}
		}
		switch before := claims[name].(type) {
		case nil:
			claims[name] = claim
		case []any:
			claims[name] = append(before, claim)
		default:
			claims[name] = []any{before, claim}
		}
	}
	return claims, nil
}
