package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// keyRefresh is the interval between two fetches of an OIDC issuer's keys, so that
// dropped keys stop counting.
const keyRefresh = 5 * time.Minute

// OIDCRule is an accepted issuer of tokens, with the field names of Istio's
// JWT_RULE. The sub of its tokens names a Kubernetes service account.
type OIDCRule struct {
	Issuer string `json:"issuer"` // iss, compared exactly
	// JWKSURI is the URL of the issuer's keys, JWKSFile a file of them. Exactly one
	// of the two is set.
	JWKSURI  string `json:"jwks_uri"`
	JWKSFile string `json:"jwks_file"`
	// Audiences are the accepted audiences; aud must name one of them.
	Audiences []string `json:"audiences"`
}

// Check returns the problems of a rule.
func (r OIDCRule) Check() error {
	switch {
	case r.Issuer == "" || strings.ContainsAny(r.Issuer, " \t\r\n"):
		return errors.New("issuer is missing or has white space")
	case (r.JWKSURI == "") == (r.JWKSFile == ""):
		return fmt.Errorf("issuer %s: want either jwks_uri or jwks_file", r.Issuer)
	case len(r.Audiences) == 0 || slices.Contains(r.Audiences, ""):
		return fmt.Errorf("issuer %s: want at least one audience, and none empty", r.Issuer)
	}
	if r.JWKSURI != "" {
		if err := mesh.CheckHTTPS(r.JWKSURI); err != nil {
			return fmt.Errorf("issuer %s: jwks_uri: %w", r.Issuer, err)
		}
	}
	return nil
}

// OIDCConfig configures OIDC. Now and Log are required.
type OIDCConfig struct {
	Rules []OIDCRule
	// Guard restricts the servers of key sets. Their certificates must lead to Roots
	// (PEM); nil means the roots of the system.
	Guard dial.Guard
	Roots []byte
	Now   func() time.Time
	Log   *slog.Logger
}

// OIDC checks tokens of issuers that are no cluster. It may be used
// concurrently.
type OIDC struct {
	cfg     OIDCConfig
	client  *http.Client
	issuers map[string]*oidcIssuer // by iss
}

// oidcIssuer is an issuer with keys from a file or a URL.
type oidcIssuer struct {
	rule OIDCRule
	file *token.FileVerifier
	keys issuerKeys

	mu      sync.Mutex // guards what follows
	problem error
	since   time.Time
}

// NewOIDC checks the rules and reads the files of keys.
func NewOIDC(cfg OIDCConfig) (*OIDC, error) {
	client, err := cfg.Guard.Client(askTimeout, dial.ServerTLS{Roots: cfg.Roots}, token.MaxKeySetSize)
	if err != nil {
		return nil, err
	}
	o := &OIDC{cfg: cfg, client: client, issuers: make(map[string]*oidcIssuer)}
	for _, r := range cfg.Rules {
		if err := r.Check(); err != nil {
			return nil, err
		}
		if o.issuers[r.Issuer] != nil {
			return nil, fmt.Errorf("issuer %s is given twice", r.Issuer)
		}
		i := &oidcIssuer{rule: r}
		if r.JWKSFile != "" {
			if i.file, err = token.LoadKeys(r.Issuer, r.JWKSFile, r.Audiences); err != nil {
				return nil, err
			}
		}
		// Fetch once a minute even after failures: forged tokens must not load an
		// issuer.
		i.keys = issuerKeys{fetch: func(ctx context.Context) (*token.Verifier, error) { return o.fetch(ctx, i) }, now: cfg.Now, retry: refetchInterval}
		o.issuers[r.Issuer] = i
	}
	return o, nil
}

// Run keeps keys fresh until ctx ends.
func (o *OIDC) Run(ctx context.Context) error {
	defer o.client.CloseIdleConnections()
	var running sync.WaitGroup
	defer running.Wait()
	for _, i := range o.issuers {
		if i.file == nil {
			running.Go(func() { o.follow(ctx, i) })
		}
	}
	return nil
}

func (o *OIDC) follow(ctx context.Context, i *oidcIssuer) {
	for ctx.Err() == nil {
		wait := keyRefresh
		_ = i.keys.refetch(ctx, ctx) // fetch has recorded the error
		if i.keys.get() == nil {
			wait = refetchInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// fetch fetches the keys and records the result.
func (o *OIDC) fetch(ctx context.Context, i *oidcIssuer) (*token.Verifier, error) {
	v, err := o.get(ctx, i)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && i.problem == nil {
		i.since = o.cfg.Now()
	}
	if err != nil {
		o.cfg.Log.Error("keys of an OIDC issuer cannot be read, the last good ones count", "issuer", i.rule.Issuer, "error", err)
	}
	i.problem = err
	return v, err
}

func (o *OIDC) get(ctx context.Context, i *oidcIssuer) (*token.Verifier, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.rule.JWKSURI, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", i.rule.JWKSURI, resp.Status)
	}
	doc, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	set, err := token.ParseKeys(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.rule.JWKSURI, err)
	}
	return &token.Verifier{Issuer: i.rule.Issuer, Keys: set, Audiences: i.rule.Audiences}, nil
}

// verify checks a token with the keys, audiences and times of the issuer that it
// names.
func (o *OIDC) verify(ctx context.Context, raw string, now time.Time) (token.Claims, error) {
	issuer, err := token.UnverifiedIssuer(raw)
	if err != nil {
		return token.Claims{}, err
	}
	i := o.issuers[issuer]
	if i == nil {
		return token.Claims{}, fmt.Errorf("issuer %.100q is not trusted", issuer)
	}
	if i.file != nil {
		return i.file.Verify(raw, now)
	}
	claims, err := i.keys.verify(raw, now)
	if err != nil && newKeysMayHelp(err) {
		// Other callers wait for the same fetch: it goes on when this one leaves.
		_ = i.keys.refetch(ctx, context.WithoutCancel(ctx))
		claims, err = i.keys.verify(raw, now)
	}
	return claims, err
}

// OIDCStatus reports whether the tokens of an issuer can be checked.
type OIDCStatus struct {
	Issuer  string
	Keys    string    // URL or file of the keys
	Problem string    `json:",omitempty"`
	Since   time.Time `json:",omitzero"` // of the problem
}

// Status returns the status of all issuers, by name.
func (o *OIDC) Status() []OIDCStatus {
	out := []OIDCStatus{}
	for _, i := range o.issuers {
		st := OIDCStatus{Issuer: i.rule.Issuer, Keys: i.rule.JWKSURI + i.rule.JWKSFile}
		i.mu.Lock()
		if i.problem != nil {
			st.Problem, st.Since = i.problem.Error(), i.since.UTC()
		}
		i.mu.Unlock()
		if i.file != nil {
			if err := i.file.Problem(); err != nil {
				st.Problem = err.Error()
			}
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b OIDCStatus) int { return strings.Compare(a.Issuer, b.Issuer) })
	return out
}
