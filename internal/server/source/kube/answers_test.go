package kube

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// api is an API server that responds as a test wants for one resource. All other
// resources are empty.
type api struct {
	*httptest.Server
	path    string // of the resource
	expired chan struct{}

	mu   sync.Mutex
	list http.HandlerFunc
	tell http.HandlerFunc // a watch; nil waits for expired
}

func newAPI(t *testing.T, path string, list http.HandlerFunc) *api {
	t.Helper()
	a := &api{path: path, list: list, expired: make(chan struct{})}
	a.Server = httptest.NewUnstartedServer(a)
	a.TLS = &tls.Config{Certificates: []tls.Certificate{apiCertificate()}, MinVersion: tls.VersionTLS13}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

// apiCertificate makes an ECDSA certificate. A test makes a connection for each resource,
// and httptest's RSA key signs slowly.
var apiCertificate = sync.OnceValue(func() tls.Certificate {
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "API", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		panic(err)
	}
	leaf, err := root.SignServer(key.Public(), []string{"127.0.0.1"}, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
})

func (a *api) config() *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	return &rest.Config{Host: a.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func (a *api) says(list, tell http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list, a.tell = list, tell
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	list, tell := a.list, a.tell
	a.mu.Unlock()
	ours := r.URL.Path == a.path
	isWatch := r.URL.Query().Get("watch") != ""
	switch {
	case ours && isWatch && tell != nil:
		tell(w, r)
	case isWatch:
		w.Header().Set("Content-Type", mediaProtobuf)
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		expired := a.expired
		if !ours {
			expired = nil
		}
		select {
		case <-r.Context().Done():
		case <-expired:
			write(w, eventFrame(eventError, envelope("v1", "Status", &metav1.Status{Code: http.StatusGone})))
		}
	case ours:
		list(w, r)
	case strings.HasPrefix(r.URL.Path, "/api/v1/") || strings.HasPrefix(r.URL.Path, "/apis/discovery"):
		version, kind := kindOf(r.URL.Path)
		answer(w, envelope(version, kind, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
	default:
		http.NotFound(w, r)
	}
}

func kindOf(path string) (version, kind string) {
	for _, r := range source.Watched() {
		if strings.HasSuffix(path, "/"+r.Name) && len(r.Versions) > 0 {
			return strings.TrimPrefix(r.Group+"/"+r.Versions[0], "/"), r.KubeKind + "List"
		}
	}
	return "", ""
}

type marshaler interface{ Marshal() ([]byte, error) }

func envelope(version, kind string, o marshaler) []byte {
	raw, err := o.Marshal()
	if err != nil {
		panic(err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte(magic), b...)
}

func eventFrame(typ string, object []byte) []byte {
	e := metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: object}}
	b, err := e.Marshal()
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func write(w io.Writer, b []byte) bool {
	_, err := w.Write(b)
	return err == nil
}

func answer(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", mediaProtobuf)
	write(w, b)
}

func service(name, version string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ResourceVersion: version},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func services(version, next string, items ...corev1.Service) []byte {
	return envelope("v1", "ServiceList", &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: next}, Items: items})
}

func says(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { answer(w, b) }
}

// tag returns the tag of a field with a length.
func field(number int, length uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3|2), length)
}

// hostile returns invalid responses to a list, with the cause and the error.
func hostile() map[string]struct {
	list  http.HandlerFunc
	cause Cause
	text  string
} {
	head := append([]byte(magic), field(envelopeType, 17)...)
	head = append(head, "\x0a\x02v1\x12\x0bServiceList"...)
	var pages atomic.Int64
	large := func(name string) corev1.Service {
		s := service(name, "1")
		s.Annotations = map[string]string{"large": strings.Repeat("x", 32<<10)}
		return s
	}
	return map[string]struct {
		list  http.HandlerFunc
		cause Cause
		text  string
	}{
		"endless pages": {func(w http.ResponseWriter, _ *http.Request) {
			n := pages.Add(1)
			answer(w, services("9", "more", large(fmt.Sprintf("a%d", n)), large(fmt.Sprintf("b%d", n))))
		}, CauseLimit, "a list of more than 8388608 bytes"},
		"endless pages of nothing": {func(w http.ResponseWriter, _ *http.Request) { answer(w, services("9", "more")) }, CauseTimeout, "in time"},
		"endless page": {func(w http.ResponseWriter, _ *http.Request) {
			s := service("s", "")
			b, _ := s.Marshal()
			item := bytes.Repeat(append(field(listItems, uint64(len(b))), b...), 1000)
			answer(w, append(head, field(envelopeRaw, 1<<50)...))
			for write(w, item) {
			}
		}, CauseLimit, "a list of more than 8388608 bytes"},
		"1 GB object": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, append(append(head, field(envelopeRaw, 1<<31)...), field(listItems, 1<<30)...))
			for write(w, make([]byte, 1<<20)) {
			}
		}, CauseAnswer, "has 1073741824 bytes, at most 65536 are read"},
		"slow body": {func(w http.ResponseWriter, r *http.Request) {
			answer(w, head)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, CauseTimeout, "in time"},
		"no answer":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, CauseTimeout, "in time"},
		"invalid protobuf": {says(append(append(head, field(envelopeRaw, 5)...), "\x12\x03\xff\xff\xff"...)), CauseAnswer, "malformed protobuf"},
		"deep protobuf":    {says(append(append(head, field(envelopeRaw, 6)...), "\x12\x04\x0a\x02\x0a\x7f"...)), CauseAnswer, "malformed protobuf"},
		"cut short":        {says(append(head, field(envelopeRaw, 1000)...)), CauseTCP, "unexpected EOF"},
		"no magic":         {says([]byte("hello")), CauseAnswer, "is not an object in protobuf"},
		"another kind":     {says(envelope("v1", "PodList", &corev1.PodList{})), CauseAnswer, `is a "PodList" of "v1", want ServiceList of v1`},
		"no version":       {says(services("", "")), CauseAnswer, "a list without a version"},
		"a web page":       {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, CauseAnswer, `answers with "text/html"`},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, CauseOther, "which is not followed"},
		"endless error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for write(w, make([]byte, 1<<16)) {
			}
		}, CauseServer, "500 Internal Server Error"},
		"gzip bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", mediaProtobuf)
			z := gzip.NewWriter(w)
			write(z, append(head, field(envelopeRaw, 1<<40)...))
			for write(z, append(field(7, 1<<10), make([]byte, 1<<10)...)) {
			}
		}, CauseLimit, "bytes"},
	}
}

// smallLimits are limits that tests can exceed.
func smallLimits(s *Source) {
	s.Configuration, s.SecretNamespaces = false, nil
	s.Limits = Limits{Objects: 100, Object: 64 << 10, List: 8 << 20}
	s.waits = waits{answer: 2 * time.Second, list: 3 * time.Second, retry: time.Millisecond, maxRetry: 100 * time.Millisecond}
}

// limitsFor are small limits with a time limit only for tests of that: a busy machine
// exceeds it with any answer.
func limitsFor(cause Cause) func(*Source) {
	return func(s *Source) {
		smallLimits(s)
		if cause != CauseTimeout {
			s.waits.answer, s.waits.slow, s.waits.list = time.Minute, time.Minute, time.Minute
		}
	}
}

// TestHostileAPIServer: an invalid list is bounded and reported and removes nothing. When
// the server recovers, it is followed again.
func TestHostileAPIServer(t *testing.T) {
	for name, tc := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := says(services("5", "", service("good", "4")))
			a := newAPI(t, "/api/v1/services", good)
			s, r, _ := run(t, a.config(), limitsFor(tc.cause))
			r.until("everything", func() bool { return r.synced == 1 })
			a.says(tc.list, nil)
			close(a.expired)
			r.until("fault", func() bool { return s.resource("services").Error != "" })
			if got := s.resource("services"); got.Cause != tc.cause || !strings.Contains(got.Error, tc.text) {
				t.Errorf("services: %+v, want %s: %s", got, tc.cause, tc.text)
			}
			if got := s.resource("pods"); got.Error != "" {
				t.Errorf("pods: %+v", got)
			}
			a.says(good, func(w http.ResponseWriter, r *http.Request) {
				answer(w, eventFrame(eventModified, envelope("v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{
					Name: "good", Namespace: "ns", ResourceVersion: "6", Labels: map[string]string{"new": "yes"},
				}})))
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})
			r.until("recovery", func() bool {
				o, ok := r.get(snapshot.KindService, "ns", "good").(*snapshot.Service)
				return ok && o.Labels["new"] == "yes" && s.resource("services").Error == ""
			})
			_, removed := r.handed()
			for _, gone := range removed {
				if strings.Contains(gone, "ns/good") {
					t.Errorf("%s was taken away", gone)
				}
			}
		})
	}
}

// TestHostileWatch: the same holds for the events of a watch.
func TestHostileWatch(t *testing.T) {
	frames := func(frames ...[]byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", mediaProtobuf)
			for _, f := range frames {
				write(w, f)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}
	bookmark := eventFrame(eventBookmark, envelope("v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}))
	for name, tc := range map[string]struct {
		tell  http.HandlerFunc
		cause Cause
		text  string
	}{
		"1 GB event":    {frames(bookmark, binary.BigEndian.AppendUint32(nil, 1<<30), make([]byte, maxHead)), CauseAnswer, "has 1073741824 bytes"},
		"another kind":  {frames(eventFrame(eventAdded, envelope("v1", "Pod", &corev1.Pod{}))), CauseAnswer, `is a "Pod" of "v1"`},
		"unknown event": {frames(eventFrame("LATER", envelope("v1", "Service", &corev1.Service{}))), CauseAnswer, `an event of type "LATER"`},
		"no protobuf":   {frames([]byte{0, 0, 0, 2, 0xff, 0xff}), CauseAnswer, "malformed protobuf"},
		"no status":     {frames(eventFrame(eventError, []byte("x"))), CauseAnswer, "an error that is no Status"},
		"error":         {frames(eventFrame(eventError, envelope("v1", "Status", &metav1.Status{Code: 500, Message: "etcd"}))), CauseServer, "watch services: 500 Internal Server Error: etcd"},
		"ends at once":  {func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) }, CauseTCP, "ends the watch at once"},
		"no answer":     {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, CauseTimeout, "in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, "/api/v1/services", says(services("5", "", service("good", "4"))))
			a.says(a.list, tc.tell)
			s, r, _ := run(t, a.config(), limitsFor(tc.cause))
			var got ResourceStatus
			r.until("fault", func() bool {
				got = s.resource("services") // now: the next list, which is valid, ends the fault
				return got.Error != "" && r.synced == 1
			})
			if got.Cause != tc.cause || !strings.Contains(got.Error, tc.text) {
				t.Errorf("services: %+v, want %s: %s", got, tc.cause, tc.text)
			}
			if _, removed := r.handed(); len(removed) > 0 {
				t.Errorf("removed %v", removed)
			}
		})
	}
}

// TestSilentWatch: a watch without events and bookmarks is given up.
func TestSilentWatch(t *testing.T) {
	var lists atomic.Int64
	a := newAPI(t, "/api/v1/services", func(w http.ResponseWriter, _ *http.Request) {
		n := lists.Add(1)
		answer(w, services(fmt.Sprint(n), "", service("s", fmt.Sprint(n))))
	})
	_, r, _ := run(t, a.config(), func(s *Source) {
		smallLimits(s)
		s.waits.idle = 50 * time.Millisecond
	})
	r.until("another list", func() bool { return lists.Load() >= 3 })
}

// TestResume: a watch resumes where the previous one ended. After an expired version
// everything is read again: missing objects are removed, equal ones are not delivered
// again.
func TestResume(t *testing.T) {
	var lists, watches atomic.Int64
	from := make(chan string, 100)
	a := newAPI(t, "/api/v1/services", func(w http.ResponseWriter, _ *http.Request) {
		if lists.Add(1) == 1 {
			answer(w, services("5", "", service("stays", "4"), service("goes", "5")))
			return
		}
		answer(w, services("20", "", service("stays", "4"), service("comes", "20")))
	})
	a.says(a.list, func(w http.ResponseWriter, r *http.Request) {
		from <- r.URL.Query().Get("resourceVersion")
		switch watches.Add(1) {
		case 1:
			answer(w, eventFrame(eventBookmark, envelope("v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8"}})))
		case 2:
			answer(w, nil) // breaks before anything is said
		case 3:
			w.Header().Set("Content-Type", mediaProtobuf)
			w.WriteHeader(http.StatusGone)
		default:
			<-r.Context().Done()
		}
	})
	_, r, _ := run(t, a.config(), smallLimits)
	r.until("second list", func() bool { return r.get(snapshot.KindService, "ns", "comes") != nil })
	for _, want := range []string{"5", "8", "8", "20"} {
		if got := <-from; got != want {
			t.Errorf("a watch from %s, want %s", got, want)
		}
	}
	r.until("removal", func() bool { return r.get(snapshot.KindService, "ns", "goes") == nil })
	if puts, _ := r.handed(); r.now(snapshot.KindService, "ns", "stays") == nil || puts != 3 {
		t.Errorf("%d objects were delivered, want 3", puts)
	}
}

// TestRunRefuses: Run returns an error for an invalid Config.
func TestRunRefuses(t *testing.T) {
	for want, cfg := range map[string]*rest.Config{
		"address of the Kubernetes API":     {Host: "https://a b"},
		"connect to the Kubernetes API at ": {Host: "https://a", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}},
	} {
		s := &Source{Cluster: "c1", Config: cfg, Now: time.Now}
		if err := s.Run(t.Context(), newRecord(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
