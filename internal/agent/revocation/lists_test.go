package revocation

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/harness"
)

// world is an authority, a workload's chain below it, and a clock.
type world struct {
	ca     *certstest.IstioCA
	chain  []*x509.Certificate
	now    time.Time
	asked  int
	answer func(have string) (*discoveryv3.DiscoveryResponse, error)

	revoked []*x509.Certificate
	file    string
	lists   *Lists
}

// Invoke implements the connection to the control plane.
func (w *world) Invoke(_ context.Context, _ string, request, reply any, _ ...grpc.CallOption) error {
	w.asked++
	req, _ := request.(*discoveryv3.DiscoveryRequest)
	answer, err := w.answer(req.GetVersionInfo())
	if err != nil {
		return err
	}
	to, _ := reply.(*discoveryv3.DiscoveryResponse)
	to.Resources, to.VersionInfo = answer.GetResources(), answer.GetVersionInfo()
	return nil
}

// NewStream implements the connection to the control plane.
func (w *world) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ca: certstest.NewIstioCA(t), now: time.Now(), file: filepath.Join(t.TempDir(), "ca-crl.pem")}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := w.ca.Authority.SignNames(key.Public(), certs.LeafSpec{SPIFFEID: certstest.Identity().String(), TTL: time.Hour}, w.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.chain = []*x509.Certificate{leaf, w.ca.Authority.Cert}
	w.answer = func(string) (*discoveryv3.DiscoveryResponse, error) {
		return nil, status.Error(codes.Unimplemented, "unknown")
	}
	w.lists = New(Config{
		File: w.file, Update: func() error { return nil },
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			return do(ctx, w)
		},
		Revoked: func(leaf *x509.Certificate) { w.revoked = append(w.revoked, leaf) },
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)), Now: func() time.Time { return w.now }, Rand: mathrand.New(mathrand.NewPCG(1, 2)),
	})
	return w
}

func (w *world) judge(t *testing.T) {
	w.lists.Judge(t.Context(), w.chain, []*x509.Certificate{w.ca.Root.Cert})
}

// list is one of a, which revokes the serial numbers.
func (w *world) list(t *testing.T, a *certs.Authority, life time.Duration, serials ...*big.Int) []byte {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: w.now.Add(-time.Hour), NextUpdate: w.now.Add(life)}
	for _, s := range serials {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: s, RevocationTime: w.now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.Cert, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// both are lists of both CAs.
func (w *world) both(t *testing.T, life time.Duration, serials ...*big.Int) []byte {
	t.Helper()
	return append(w.list(t, w.ca.Root, life), w.list(t, w.ca.Authority, life, serials...)...)
}

// write makes the file hold data, and time go on until it has rested.
func (w *world) write(t *testing.T, data []byte) {
	t.Helper()
	if err := os.WriteFile(w.file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(w.file+".new", w.now, w.now); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.file+".new", w.file); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(lookInterval)
}

// wantKept checks that nothing but good is in use, for a reason.
func (w *world) wantKept(t *testing.T, what string, good []byte, reason string) {
	t.Helper()
	w.lists.follow(t.Context())
	s := w.lists.Status()
	if s.Err == nil || !strings.Contains(s.Err.Error(), reason) {
		t.Errorf("%s: error %v, want one with %q", what, s.Err, reason)
	}
	if string(w.lists.PEM()) != string(good) {
		t.Errorf("%s: other lists than the last good ones are in use", what)
	}
}

// What the file holds is in use with the first certificate, and followed; what
// Envoy could not work with is not.
func TestFile(t *testing.T) {
	w := newWorld(t)
	w.write(t, w.both(t, time.Hour))
	w.judge(t)
	if s := w.lists.Status(); s.Count != 2 || s.Err != nil || !s.Until.Equal(w.now.Add(time.Hour-lookInterval).Truncate(time.Second)) || w.asked > 0 {
		t.Fatalf("status %+v, asked %d times", s, w.asked)
	}
	next := w.both(t, time.Hour, big.NewInt(7))
	w.write(t, next)
	if !w.lists.follow(t.Context()) || string(w.lists.PEM()) != string(next) {
		t.Fatal("a new file is not followed")
	}
	if w.lists.follow(t.Context()) {
		t.Error("the same file is news")
	}
	for what, bad := range map[string]struct {
		data   []byte
		reason string
	}{
		"junk":                {[]byte("junk"), string(verify.NoPEM)},
		"empty":               {nil, string(verify.CRLMalformed)},
		"out of date":         {w.both(t, -time.Minute), string(verify.CRLStale)},
		"without the root's":  {w.list(t, w.ca.Authority, time.Hour), string(verify.CRLMissing)},
		"without the other's": {w.list(t, w.ca.Root, time.Hour), string(verify.CRLMissing)},
		"a certificate":       {certs.EncodeCerts(w.ca.Root.Cert), string(verify.Misplaced)},
	} {
		w.write(t, bad.data)
		w.wantKept(t, what, next, bad.reason)
	}
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	w.wantKept(t, "gone", next, "is gone")
	// Expiring lists are reported, and expired lists stay in use: Envoy would accept no
	// peer with new expired lists.
	w.write(t, next)
	w.lists.follow(t.Context())
	w.now = w.now.Add(50 * time.Minute)
	w.wantKept(t, "ends soon", next, string(verify.ExpiresSoon))
	w.now = w.now.Add(time.Hour)
	w.wantKept(t, "ended", next, string(verify.CRLStale))
	if w.asked > 0 {
		t.Error("the control plane was asked beside the file")
	}
}

// A file that is being written is let rest.
func TestFileInWriting(t *testing.T) {
	w := newWorld(t)
	w.judge(t)
	w.write(t, w.both(t, time.Hour))
	w.now = w.now.Add(-lookInterval / 2)
	if w.lists.follow(t.Context()) {
		t.Error("a file that was written just now is read")
	}
	w.now = w.now.Add(lookInterval)
	if !w.lists.follow(t.Context()) {
		t.Error("it is not read when it has rested")
	}
}

// response is an answer with lists.
func response(t *testing.T, version string, lists []byte) *discoveryv3.DiscoveryResponse {
	t.Helper()
	context := &tlsv3.CertificateValidationContext{}
	if lists != nil {
		context.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: lists}}
	}
	body, err := anypb.New(&tlsv3.Secret{Name: mesh.SecretRoots, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
	if err != nil {
		t.Fatal(err)
	}
	return &discoveryv3.DiscoveryResponse{VersionInfo: version, Resources: []*anypb.Any{body}}
}

// Without a file the control plane is asked, with the first certificate and
// once a minute.
func TestControlPlane(t *testing.T) {
	w := newWorld(t)
	version, lists := "1", w.both(t, 2*time.Hour)
	w.answer = func(have string) (*discoveryv3.DiscoveryResponse, error) {
		if have == version {
			return &discoveryv3.DiscoveryResponse{VersionInfo: version}, nil
		}
		return response(t, version, lists), nil
	}
	w.judge(t)
	if w.lists.Status().Count != 2 || w.asked != 1 {
		t.Fatalf("status %+v, asked %d times", w.lists.Status(), w.asked)
	}
	if w.lists.follow(t.Context()) || w.asked != 1 {
		t.Error("it was asked again at once")
	}
	minute := func() { w.now = w.now.Add(askInterval * 11 / 10) }
	minute()
	if w.lists.follow(t.Context()) || w.asked != 2 {
		t.Error("the same version is news, or it was not asked")
	}
	good := lists
	version, lists = "2", []byte("junk")
	minute()
	w.wantKept(t, "junk", good, string(verify.NoPEM))
	known := w.answer
	w.answer = func(string) (*discoveryv3.DiscoveryResponse, error) {
		return nil, status.Error(codes.Unavailable, "away")
	}
	minute()
	w.wantKept(t, "away", good, "away")
	w.answer = known
	version, lists = "3", nil // there are none any more
	minute()
	if !w.lists.follow(t.Context()) || len(w.lists.PEM()) > 0 || w.lists.Status() != (Status{}) {
		t.Errorf("status %+v, want no lists", w.lists.Status())
	}
	// A file that comes late counts from then on.
	asked := w.asked
	w.write(t, w.both(t, time.Hour))
	minute()
	if !w.lists.follow(t.Context()) || w.lists.Status().Count != 2 || w.asked != asked {
		t.Errorf("status %+v, asked %d times", w.lists.Status(), w.asked-asked)
	}
}

// TestFirstRequestFails: until the control plane has answered once, it is asked again soon, and more
// and more rarely.
func TestFirstRequestFails(t *testing.T) {
	w := newWorld(t)
	w.answer = func(string) (*discoveryv3.DiscoveryResponse, error) {
		return nil, status.Error(codes.Unauthenticated, "who are you")
	}
	w.judge(t)
	for range 120 {
		w.now = w.now.Add(time.Second)
		w.lists.follow(t.Context())
	}
	if w.asked < 6 || w.asked > 8 {
		t.Errorf("asked %d times in two minutes, want about 7", w.asked)
	}
	w.answer = func(string) (*discoveryv3.DiscoveryResponse, error) {
		return response(t, "1", w.both(t, time.Hour)), nil
	}
	w.now = w.now.Add(askInterval)
	if !w.lists.follow(t.Context()) || w.lists.Status().Count != 2 {
		t.Errorf("status %+v, want two lists", w.lists.Status())
	}
}

// A control plane of Istio's does not know the question, and is not bothered.
func TestControlPlaneThatDoesNotKnow(t *testing.T) {
	w := newWorld(t)
	w.judge(t)
	w.now = w.now.Add(10 * time.Minute)
	w.lists.follow(t.Context())
	if s := w.lists.Status(); s != (Status{}) || w.asked != 1 {
		t.Errorf("status %+v, asked %d times", s, w.asked)
	}
}

// TestOwnCertificateIsRevoked: Revoked is called when lists name the workload itself.
func TestOwnCertificateIsRevoked(t *testing.T) {
	w := newWorld(t)
	w.judge(t)
	w.write(t, w.both(t, time.Hour, w.chain[0].SerialNumber))
	if !w.lists.follow(t.Context()) || len(w.revoked) != 1 || w.revoked[0] != w.chain[0] {
		t.Errorf("told of %d revocations, status %+v", len(w.revoked), w.lists.Status())
	}
}

// TestFileWithoutDescriptors: lists that could not be read are read again, though
// the file does not change.
func TestFileWithoutDescriptors(t *testing.T) {
	w := newWorld(t)
	good := w.both(t, time.Hour)
	w.write(t, good)
	w.judge(t)
	next := w.both(t, time.Hour, big.NewInt(7))
	w.write(t, next)
	feed := harness.Starve(t)
	w.lists.follow(t.Context())
	w.wantKept(t, "no descriptors", good, "too many open files")
	feed()
	if !w.lists.follow(t.Context()) || string(w.lists.PEM()) != string(next) {
		t.Errorf("the lists were not read again: %v", w.lists.Status())
	}
}
