package mesh

import "crypto/tls"

// KeyExchangeChoices returns the values of --tls-key-exchange; the first one is the default.
func KeyExchangeChoices() []string { return []string{"pqc-preferred", "pqc-required", "classic"} }

// KeyExchanges returns the key exchanges of a value of --tls-key-exchange. Without any, all that Go
// supports are used. It returns false for an unknown value.
func KeyExchanges(choice string) ([]tls.CurveID, bool) {
	switch choice {
	case "", "pqc-preferred":
		return nil, true
	case "pqc-required":
		return []tls.CurveID{tls.X25519MLKEM768}, true
	case "classic":
		return []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384}, true
	}
	return nil, false
}

// keyExchangeNames holds the key exchanges that Envoy has, by its names, best first.
var keyExchangeNames = []struct {
	name string
	id   tls.CurveID
}{
	{"X25519MLKEM768", tls.X25519MLKEM768}, {"X25519", tls.X25519}, {"P-256", tls.CurveP256}, {"P-384", tls.CurveP384}, {"P-521", tls.CurveP521},
}

// KeyExchangeNames returns Envoy's names of all key exchanges, which are the valid ecdhCurves of MeshConfig.
func KeyExchangeNames() []string {
	var out []string
	for _, k := range keyExchangeNames {
		out = append(out, k.name)
	}
	return out
}

// KeyExchangeName returns Envoy's name of a key exchange, or an empty string.
func KeyExchangeName(id tls.CurveID) string {
	for _, k := range keyExchangeNames {
		if k.id == id {
			return k.name
		}
	}
	return ""
}
