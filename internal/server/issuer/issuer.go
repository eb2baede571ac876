// Package issuer turns certificate requests into certificates: request in,
// certificate of the authenticated caller out, with a policy for life times.
// It speaks Istio's CA protocol and makes the control plane's own serving
// certificate from the same authority.
package issuer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Defaults of Policy.
const (
	DefaultTTL         = 24 * time.Hour
	DefaultMaxTTL      = 90 * 24 * time.Hour
	DefaultPerIdentity = 10
)

// Policy says what is signed. Life times that are zero are the defaults.
type Policy struct {
	// TTL is the life time that a request without one gets, MaxTTL the longest
	// that may be asked for.
	TTL, MaxTTL time.Duration
	// PerIdentity is how many requests a second each identity may make, ten
	// times as many at once. 0 is any number.
	PerIdentity float64
}

// Config of an Issuer. Everything but Authority, Policy, Known, SlowDown and
// Stats is required.
type Config struct {
	// Authority signs until SetAuthority gives another. Without one nothing is
	// signed.
	Authority *certs.Authority
	Policy    Policy
	// Authenticate says who is at the other end of a gRPC call.
	Authenticate func(context.Context) (mesh.Caller, error)
	// Known says who calls with these headers if that was found out a moment
	// ago, at the price of a hash. SlowDown makes the connection of a call be
	// read later. Either may be nil.
	Known    func(context.Context, metadata.MD) (mesh.Caller, bool)
	SlowDown func(context.Context, time.Duration)
	Now      func() time.Time
	Rand     io.Reader // serial numbers
	Log      *slog.Logger
	Stats    Stats
}

// Stats are called when something is to be counted, concurrently. Nil ones
// are not called. The comments name Istio's metrics.
type Stats struct {
	Request     func()              // citadel_server_csr_count
	AuthFailure func()              // citadel_server_authentication_failure_count
	Limited     func()              // requests over a limit
	ParseError  func()              // citadel_server_csr_parsing_err_count
	SignError   func(reason string) // citadel_server_csr_sign_err_count{error}
	Issued      func()              // citadel_server_success_cert_issuance_count
}

// Reasons of Stats.SignError, with Istio's words.
const (
	reasonCSR  = "CSR_ERROR"
	reasonTTL  = "TTL_ERROR"
	reasonSign = "CERT_GEN_ERROR"
	reasonCA   = "CA_NOT_READY"
)

// metaImpersonated is the entry of a request's metadata that names another
// identity to sign for.
const metaImpersonated = "ImpersonatedIdentity"

// Issuer signs certificates with an authority that may be swapped while it
// works. It is safe for concurrent use.
type Issuer struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer

	cfg     Config
	signing atomic.Pointer[signing]
	limits  *limiter
	queue   *queue
	signed  record
	serving atomic.Pointer[served] // the last one made
}

// New returns an Issuer. The error names what cfg lacks.
func New(cfg Config) (*Issuer, error) {
	if cfg.Authenticate == nil || cfg.Now == nil || cfg.Rand == nil || cfg.Log == nil {
		return nil, errors.New("issuer: Authenticate, Now, Rand and Log are required")
	}
	cfg.Policy.TTL = cmp.Or(cfg.Policy.TTL, DefaultTTL)
	cfg.Policy.MaxTTL = cmp.Or(cfg.Policy.MaxTTL, DefaultMaxTTL)
	i := &Issuer{cfg: cfg, queue: newQueue(), limits: newLimiter(cfg.Policy.PerIdentity)}
	i.SetAuthority(cfg.Authority)
	return i, nil
}

// signing is what an authority needs to sign, made once.
type signing struct {
	authority *certs.Authority
	signer    func() (*certs.LeafSigner, error)
	answer    []string // what follows the leaf in an answer
}

// Authority returns the authority in use, nil when there is none yet.
func (i *Issuer) Authority() *certs.Authority {
	if s := i.signing.Load(); s != nil {
		return s.authority
	}
	return nil
}

// SetAuthority makes the issuer sign with a from now on.
func (i *Issuer) SetAuthority(a *certs.Authority) {
	if a == nil {
		i.signing.Store(nil)
		return
	}
	s := &signing{authority: a, signer: sync.OnceValues(func() (*certs.LeafSigner, error) { return certs.NewLeafSigner(a) })}
	for _, c := range a.Chain {
		s.answer = append(s.answer, string(certs.EncodeCerts(c)))
	}
	s.answer = append(s.answer, string(certs.EncodeCerts(a.Roots...)))
	i.signing.Store(s)
}

// errNoAuthority is that there is nothing to sign with yet.
var errNoAuthority = errors.New("the signing CA is not loaded yet")

// RequestError is a fault of the request, not of the issuer.
type RequestError struct {
	reason string
	err    error
}

// Error says what is wrong with the request.
func (e *RequestError) Error() string { return e.err.Error() }

// Unwrap returns the fault itself.
func (e *RequestError) Unwrap() error { return e.err }

// Sign makes a certificate for the key of csr (PEM) and the identity and
// cluster of caller; all else in csr is ignored. A ttl of zero or less means
// that of the policy; more than its maximum is a RequestError, as is a bad
// csr. The certificate never outlives the authority. The result is Istio's: the
// leaf, each certificate of the chain, and last the whole root bundle, all PEM
// that ends with a newline.
func (i *Issuer) Sign(csr []byte, caller mesh.Caller, ttl time.Duration) ([]string, error) {
	if longest := i.cfg.Policy.MaxTTL; ttl > longest {
		return nil, &RequestError{reasonTTL, fmt.Errorf("requested life time %v is longer than the %v allowed", ttl, longest)}
	}
	if ttl <= 0 {
		ttl = i.cfg.Policy.TTL
	}
	req, err := certs.ParseCSR(csr)
	if err != nil {
		return nil, &RequestError{reasonCSR, err}
	}
	s := i.signing.Load()
	if s == nil {
		return nil, errNoAuthority
	}
	signer, err := s.signer()
	if err != nil {
		return nil, err
	}
	now := i.cfg.Now()
	leaf, until, err := signer.Sign(req.PublicKey, caller, ttl, now, i.cfg.Rand)
	if err != nil {
		return nil, err
	}
	i.signed.add(s.authority, now, until)
	return append([]string{certs.EncodeDER(leaf)}, s.answer...), nil
}

// Register adds the CA service to a gRPC server.
func (i *Issuer) Register(r grpc.ServiceRegistrar) {
	securityv1alpha1.RegisterIstioCertificateServiceServer(r, i)
}

// CreateCertificate serves istio.v1.auth.IstioCertificateService.
func (i *Issuer) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	count(i.cfg.Stats.Request)
	caller, err := i.cfg.Authenticate(ctx)
	if err != nil {
		count(i.cfg.Stats.AuthFailure)
		i.cfg.Log.WarnContext(ctx, "certificate request refused: caller not authenticated", "err", err)
		// Who could not be told apart may try again. What else failed would
		// help only an attacker.
		if status.Code(err) == codes.Unavailable {
			return nil, err
		}
		return nil, status.Error(codes.Unauthenticated, "request authenticate failure")
	}
	// Istio's node proxies ask in the name of others. Nobody may here.
	if req.GetMetadata().GetFields()[metaImpersonated].GetStringValue() != "" {
		count(i.cfg.Stats.AuthFailure)
		i.cfg.Log.WarnContext(ctx, "certificate request refused: it is in the name of another", "caller", caller.Identity.String())
		return nil, status.Error(codes.Unauthenticated, "request impersonation authentication failure")
	}
	if !i.limits.allow(caller.Identity, i.cfg.Now()) {
		return nil, i.tooMany(caller)
	}
	done, err := i.queue.take(ctx, caller.Identity)
	if err != nil {
		if status.Code(err) == codes.ResourceExhausted {
			count(i.cfg.Stats.Limited)
		}
		return nil, err
	}
	defer done()
	chain, err := i.Sign([]byte(req.GetCsr()), caller, secondsToTTL(req.GetValidityDuration()))
	if err != nil {
		return nil, i.refuse(ctx, caller, err)
	}
	count(i.cfg.Stats.Issued)
	if i.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		i.cfg.Log.DebugContext(ctx, "certificate issued", "identity", caller.Identity.String(), "cluster", caller.Cluster)
	}
	return &securityv1alpha1.IstioCertificateResponse{CertChain: chain}, nil
}

// refusalCost is how much later the connection of a refused request is read on:
// who asks without measure waits, and takes no more of the processors than so
// many refusals a second cost.
const refusalCost = 5 * time.Millisecond

// Tap refuses requests of callers that are known and over their limit before a
// stream is made for them or the request is read. What it lets pass is judged by
// CreateCertificate. It is a tap.ServerInHandle.
func (i *Issuer) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if i.cfg.Known == nil || info.FullMethodName != securityv1alpha1.IstioCertificateService_CreateCertificate_FullMethodName {
		return ctx, nil
	}
	caller, known := i.cfg.Known(ctx, info.Header)
	if !known || !i.limits.exhausted(caller.Identity, i.cfg.Now()) {
		return ctx, nil
	}
	count(i.cfg.Stats.Request)
	if i.cfg.SlowDown != nil {
		i.cfg.SlowDown(ctx, refusalCost)
	}
	return ctx, i.tooMany(caller)
}

func (i *Issuer) tooMany(caller mesh.Caller) error {
	count(i.cfg.Stats.Limited)
	return status.Errorf(codes.ResourceExhausted, "more than %v certificate requests a second of %s", i.cfg.Policy.PerIdentity, caller.Identity)
}

// refuse counts and logs a request that was not signed and returns the error
// for the caller.
func (i *Issuer) refuse(ctx context.Context, caller mesh.Caller, err error) error {
	code, reason := codes.Internal, reasonSign
	if bad, ok := errors.AsType[*RequestError](err); ok {
		code, reason = codes.InvalidArgument, bad.reason
	}
	if errors.Is(err, errNoAuthority) {
		reason = reasonCA
	}
	if reason == reasonCSR {
		count(i.cfg.Stats.ParseError)
	}
	if i.cfg.Stats.SignError != nil {
		i.cfg.Stats.SignError(reason)
	}
	i.cfg.Log.WarnContext(ctx, "certificate request refused", "identity", caller.Identity.String(), "err", err)
	return status.Errorf(code, "CSR signing error (%v)", err)
}

// secondsToTTL converts the life time of a request. What a time.Duration
// cannot hold becomes the longest one, which is over any maximum.
func secondsToTTL(s int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	if s > most {
		return 1<<63 - 1
	}
	return time.Duration(max(s, 0)) * time.Second
}

func count(f func()) {
	if f != nil {
		f()
	}
}
