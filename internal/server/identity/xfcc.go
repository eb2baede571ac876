package identity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	headerXFCC = "x-forwarded-client-cert"
	maxXFCC    = 16 << 10 // bytes
)

// byXFCC authenticates the client of a trusted gateway by the certificate that the
// gateway forwards. The cluster of such a caller is unknown.
func (a *Authenticator) byXFCC(ctx context.Context, md metadata.MD) (mesh.Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return mesh.Caller{}, errors.New("the peer has no address")
	}
	// The type of the address depends on the server; its text does not.
	addr, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil || !slices.ContainsFunc(a.cfg.XFCCSources, func(n netip.Prefix) bool { return n.Contains(addr.Addr().Unmap()) }) {
		return mesh.Caller{}, errors.New("the peer is no trusted gateway")
	}
	values := md.Get(headerXFCC)
	if len(values) != 1 {
		return mesh.Caller{}, fmt.Errorf("%d %s headers: want one", len(values), headerXFCC)
	}
	id, err := ParseXFCC(values[0])
	if err == nil {
		err = a.checkOfMesh(id)
	}
	return mesh.Caller{Identity: id}, err
}

// ParseXFCC returns the identity in the last element of the header, which the
// gateway itself wrote. It received the earlier elements from its client.
func ParseXFCC(header string) (mesh.Identity, error) {
	if len(header) > maxXFCC {
		return mesh.Identity{}, fmt.Errorf("%s has %d bytes: want at most %d", headerXFCC, len(header), maxXFCC)
	}
	elements, err := splitQuoted(header, ',')
	if err != nil {
		return mesh.Identity{}, err
	}
	pairs, err := splitQuoted(elements[len(elements)-1], ';')
	if err != nil {
		return mesh.Identity{}, err
	}
	var uris []string
	for _, pair := range pairs {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if strings.EqualFold(key, "URI") {
			uris = append(uris, strings.Trim(value, `"`))
		}
	}
	if len(uris) != 1 {
		return mesh.Identity{}, fmt.Errorf("%s has %d URIs: want exactly one, the SPIFFE id", headerXFCC, len(uris))
	}
	return mesh.ParseIdentity(uris[0])
}

// splitQuoted splits at separators outside of quotes. Within quotes a backslash
// escapes the next character.
func splitQuoted(s string, sep byte) ([]string, error) {
	var out []string
	start, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == sep && !quoted:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	if quoted {
		return nil, fmt.Errorf("%s has a quote without end", headerXFCC)
	}
	return append(out, s[start:]), nil
}
