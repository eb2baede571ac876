package ca

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// Default lifetimes of Policy.
const (
	DefaultTTL    = 24 * time.Hour
	DefaultMaxTTL = 90 * 24 * time.Hour
)

// Policy limits the certificates. Zero lifetimes are the defaults.
type Policy struct {
	// TTL is the lifetime for requests that ask for none, MaxTTL the longest one
	// that a request may ask for.
	TTL, MaxTTL time.Duration
	// PerIdentity is the number of requests a second that each identity may make,
	// and ten times as many at once. 0 is no limit.
	PerIdentity float64
}

// IssuerConfig configures an Issuer. Authority, Policy, Known, SlowDown and Stats are
// optional.
type IssuerConfig struct {
	// Authority signs until SetAuthority sets another. Without one, requests fail.
	Authority *certs.Authority
	Policy    Policy
	// Authenticate returns the caller of a gRPC call.
	Authenticate func(context.Context) (mesh.Caller, error)
	// Known returns the caller with these headers if it was authenticated a moment
	// ago; it costs a hash. SlowDown delays further reads from the connection of a
	// call. Either may be nil.
	Known    func(context.Context, metadata.MD) (mesh.Caller, bool)
	SlowDown func(context.Context, time.Duration)
	Now      func() time.Time
	Rand     io.Reader // serial numbers
	Log      *slog.Logger
	Stats    IssuerStats
}

// IssuerStats count events. They are called concurrently and may be nil. The comments
// name Istio's metrics.
type IssuerStats struct {
	Request     func()              // citadel_server_csr_count
	AuthFailure func()              // citadel_server_authentication_failure_count
	Limited     func()              // requests over a limit
	ParseError  func()              // citadel_server_csr_parsing_err_count
	SignError   func(reason string) // citadel_server_csr_sign_err_count{error}
	Issued      func()              // citadel_server_success_cert_issuance_count
}

// Reasons of Stats.SignError, as in Istio.
const (
	reasonCSR  = "CSR_ERROR"
	reasonTTL  = "TTL_ERROR"
	reasonSign = "CERT_GEN_ERROR"
	reasonCA   = "CA_NOT_READY"
)

// metaImpersonated is the entry in the metadata of a request that names another
// identity for the certificate.
const metaImpersonated = "ImpersonatedIdentity"

// Issuer signs certificates with an authority that may change at any time. It may be
// used concurrently.
type Issuer struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer

	cfg     IssuerConfig
	signing atomic.Pointer[signingKit]
	limits  *identityLimiter
	queue   *fairQueue
	signed  issuedLog
	serving atomic.Pointer[servingLeaf] // the latest
}

// NewIssuer returns an Issuer.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if cfg.Authenticate == nil || cfg.Now == nil || cfg.Rand == nil || cfg.Log == nil {
		return nil, errors.New("issuer: Authenticate, Now, Rand and Log are required")
	}
	cfg.Policy.TTL = cmp.Or(cfg.Policy.TTL, DefaultTTL)
	cfg.Policy.MaxTTL = cmp.Or(cfg.Policy.MaxTTL, DefaultMaxTTL)
	i := &Issuer{cfg: cfg, queue: newFairQueue(), limits: newIdentityLimiter(cfg.Policy.PerIdentity)}
	i.SetAuthority(cfg.Authority)
	return i, nil
}

// signingKit is an authority with the PEM of its chain, made once.
type signingKit struct {
	authority *certs.Authority
	answer    []string // the certificates after the leaf in a response
}

// Authority returns the authority in use, nil if there is none yet.
func (i *Issuer) Authority() *certs.Authority {
	if s := i.signing.Load(); s != nil {
		return s.authority
	}
	return nil
}

// SetAuthority sets the authority that signs from now on.
func (i *Issuer) SetAuthority(a *certs.Authority) {
	if a == nil {
		i.signing.Store(nil)
		return
	}
	s := &signingKit{authority: a}
	for _, c := range a.Chain {
		s.answer = append(s.answer, string(certs.EncodeCerts(c)))
	}
	s.answer = append(s.answer, string(certs.EncodeCerts(a.Roots...)))
	i.signing.Store(s)
}

// errNoAuthority reports that there is no authority yet.
var errNoAuthority = errors.New("the signing CA is not loaded yet")

// RequestError reports an invalid request.
type RequestError struct {
	reason string
	err    error
}

// Error describes the fault of the request.
func (e *RequestError) Error() string { return e.err.Error() }

// Unwrap returns the fault of the request.
func (e *RequestError) Unwrap() error { return e.err }

// Sign makes a certificate for the key of csr (PEM) and the identity and cluster of
// caller; it ignores the rest of csr. A ttl of zero or less means the policy's. A ttl
// above the policy's maximum is a RequestError, and so is an invalid csr. The
// certificate expires with the authority at the latest. The result has the form of
// Istio's: the leaf, each certificate of the chain, and the root bundle, all in PEM
// with a newline at the end.
func (i *Issuer) Sign(csr []byte, caller mesh.Caller, ttl time.Duration) ([]string, error) {
	if longest := i.cfg.Policy.MaxTTL; ttl > longest {
		return nil, &RequestError{reasonTTL, fmt.Errorf("requested lifetime %v is longer than the %v allowed", ttl, longest)}
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
	now := i.cfg.Now()
	leaf, err := s.authority.SignLeaf(req.PublicKey, caller, ttl, now, i.cfg.Rand)
	if err != nil {
		return nil, err
	}
	i.signed.add(s.authority, now, leaf.NotAfter)
	return append([]string{string(certs.EncodeCerts(leaf))}, s.answer...), nil
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
		// Callers may try again if no API server could review the token. Other
		// reasons would only help an attacker.
		if status.Code(err) == codes.Unavailable {
			return nil, err
		}
		return nil, status.Error(codes.Unauthenticated, "request authenticate failure")
	}
	// Istio's node proxies request certificates of other identities. That is not
	// supported.
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

// refusalCost is the delay of further reads from a connection after a refused
// request. It bounds the CPU time that a flood of requests costs.
const refusalCost = 5 * time.Millisecond

// Tap refuses requests of known callers over their limit before gRPC creates a stream
// or reads the request. CreateCertificate decides about all others. It is a
// tap.ServerInHandle.
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

// refuse counts and logs a refused request and returns the error for the caller.
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

// secondsToTTL converts the lifetime of a request. Values beyond time.Duration become
// the longest Duration, which is above any maximum.
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
