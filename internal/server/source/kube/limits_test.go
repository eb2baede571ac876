package kube

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// script responds to watches with frames that a test sends while the watch lasts.
func script(media string) (frames chan []byte, answer http.HandlerFunc) {
	frames = make(chan []byte)
	return frames, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", media)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case f := <-frames:
				if f == nil {
					return
				}
				write(w, f)
				w.(http.Flusher).Flush()
			}
		}
	}
}

// testKind makes objects, lists and events of one resource.
type testKind struct {
	path     string
	media    string
	kind     snapshot.Kind
	resource string
	object   func(name, version, filler string) []byte
	list     func(version string, objects ...[]byte) []byte
	event    func(typ string, object []byte) []byte
}

func inProtobuf() testKind {
	return testKind{
		path: "/api/v1/services", media: mediaProtobuf, kind: snapshot.KindService, resource: "services",
		object: func(name, version, filler string) []byte {
			s := service(name, version)
			s.Labels = map[string]string{"version": version}
			if filler != "" {
				s.Spec.Selector = map[string]string{"a": filler}
			}
			b, err := s.Marshal()
			if err != nil {
				panic(err)
			}
			return b
		},
		list: func(version string, objects ...[]byte) []byte {
			items := make([]corev1.Service, len(objects))
			for i, b := range objects {
				if err := items[i].Unmarshal(b); err != nil {
					panic(err)
				}
			}
			return services(version, "", items...)
		},
		event: func(typ string, object []byte) []byte { return eventFrame(typ, envelope("v1", "Service", raw(object))) },
	}
}

// raw is an encoded object.
type raw []byte

func (r raw) Marshal() ([]byte, error) { return r, nil }

func inJSON() testKind {
	return testKind{
		path: "/apis/networking.istio.io/v1/sidecars", media: mediaJSON, kind: snapshot.KindSidecar, resource: "sidecars.networking.istio.io",
		object: func(name, version, filler string) []byte {
			return fmt.Appendf(nil, `{"apiVersion":"networking.istio.io/v1","kind":"Sidecar","metadata":{"annotations":{"a":"}\"]"},"name":%q,"namespace":"ns",`+
				`"resourceVersion":%[2]q,"labels":{"version":%[2]q}},"spec":{"workloadSelector":{"labels":{"a":%[3]q}}}}`, name, version, filler)
		},
		list: func(version string, objects ...[]byte) []byte {
			return fmt.Appendf(nil, `{"apiVersion":"networking.istio.io/v1","items":[%s],"kind":"SidecarList","metadata":{"resourceVersion":%q}}`+"\n",
				bytes.Join(objects, []byte(", ")), version)
		},
		event: func(typ string, object []byte) []byte {
			return fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", typ, object)
		},
	}
}

// follows runs a source on an API server that has only this kind.
func (k *testKind) follows(t *testing.T, limits Limits, list []byte) (s *Source, r *record, a *api, frames chan<- []byte) {
	t.Helper()
	a = newAPI(t, k.path, nil)
	says := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", k.media)
		write(w, list)
	}
	sent, watch := script(k.media)
	a.says(says, watch)
	s, r, _ = run(t, a.config(), func(s *Source) {
		smallLimits(s)
		s.Configuration, s.Limits = true, limits
	})
	r.until("everything", func() bool { return r.synced == 1 })
	return s, r, a, sent
}

// version returns the label "version" of an object, empty if there is none.
func (k *testKind) version(r *record, name string) string {
	switch o := r.get(k.kind, "ns", name).(type) {
	case *snapshot.Service:
		return o.Labels["version"]
	case *snapshot.Sidecar:
		return o.Labels["version"]
	}
	return ""
}

// problems returns the problems of the source as one text.
func problems(s *Source) string {
	var out []string
	for _, p := range s.Status().Problems {
		out = append(out, p.Object+": "+strings.Join(p.Reasons, "; "))
	}
	return strings.Join(out, "\n")
}

// TestObjectTooLarge: an object beyond the size limit is reported and its last good
// version stays until it is deleted. All other objects are read and followed.
func TestObjectTooLarge(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func() testKind{"protobuf": inProtobuf, "JSON": inJSON} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kind()
			filler := strings.Repeat("x", 128<<10)
			list := k.list("5", k.object("big", "2", filler), k.object("small", "3", ""), k.object("grows", "4", ""))
			s, r, _, frames := k.follows(t, Limits{Object: 64 << 10}, list)
			shows := func(want string) func() bool {
				return func() bool { return strings.Contains(problems(s), want) }
			}
			r.until("problem", shows("ns/big: has "))
			if is := s.resource(k.resource); is.Error != "" {
				t.Errorf("the resource is not followed: %+v", is)
			}
			if got := problems(s); !strings.Contains(got, " bytes, at most 65536 are read") || strings.Contains(got, "last good") {
				t.Errorf("problems: %s", got)
			}
			frames <- k.event(eventModified, k.object("grows", "6", filler))
			r.until("problem of what grows", shows("at most 65536 are read; its last good version stays in use"))
			frames <- k.event(eventModified, k.object("small", "7", ""))
			r.until("change of another", func() bool { return k.version(r, "small") == "7" })
			r.update(func() {
				if got := k.version(r, "grows"); got != "4" {
					t.Errorf("what grew is now of version %q", got)
				}
			})
			frames <- k.event(eventDeleted, k.object("grows", "8", filler))
			r.until("deletion of what is too large", func() bool { return r.get(k.kind, "ns", "grows") == nil })
			frames <- k.event(eventDeleted, k.object("small", "9", ""))
			r.until("deletion of another", func() bool { return r.get(k.kind, "ns", "small") == nil })
			frames <- k.event(eventModified, k.object("big", "10", ""))
			r.until("what is small now", func() bool { return k.version(r, "big") == "10" && problems(s) == "" })
			if n := strings.Count(r.text(), "configuration is not used"); n != 2 {
				t.Errorf("%d warnings, want one of each object:\n%s", n, r.text())
			}
		})
	}
}

// TestDeepObject: an object that is nested too deep to be decoded does not affect the
// others.
func TestDeepObject(t *testing.T) {
	t.Parallel()
	k := inJSON()
	deep := bytes.Replace(k.object("deep", "2", ""), []byte(`{"labels"`), []byte(strings.Repeat(`{"a":`, 9_999)+"1"+strings.Repeat("}", 9_999)+`,"b":{"labels"`), 1)
	deep = bytes.Replace(deep, []byte(`"workloadSelector":`), []byte(`"x":`), 1)
	s, r, _, frames := k.follows(t, Limits{}, k.list("5", deep, k.object("good", "3", "")))
	r.until("problem", func() bool { return strings.Contains(problems(s), "Sidecar ns/deep: ") })
	frames <- k.event(eventModified, deep)
	frames <- k.event(eventModified, k.object("good", "7", ""))
	r.until("change of another", func() bool { return k.version(r, "good") == "7" })
}

// TestMoreThanIsHeld: objects beyond the limits of a cluster are left out, which is
// logged once. The held objects are followed, deletions included. When the watch ends,
// objects come in as far as there is room.
func TestMoreThanIsHeld(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Limits{"objects": {Objects: 3}, "bytes": {Bytes: 250}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := inProtobuf()
			objects := [][]byte{}
			for i := range 10 {
				objects = append(objects, k.object(fmt.Sprint("s", i), fmt.Sprint(i+1), ""))
			}
			s, r, a, frames := k.follows(t, limits, k.list("20", objects...))
			r.until("problem", func() bool {
				return strings.HasPrefix(problems(s), "services: 7 objects left out or outdated: the ") &&
					strings.Contains(problems(s), fmt.Sprintf("more than %d %s", limits.Objects+limits.Bytes, name))
			})
			if is := s.resource("services"); is.Error != "" || is.Objects != 3 {
				t.Errorf("services: %+v", is)
			}
			frames <- k.event(eventAdded, k.object("s10", "21", ""))
			frames <- k.event(eventDeleted, k.object("s9", "22", ""))
			frames <- k.event(eventModified, k.object("s0", "23", ""))
			r.until("change", func() bool { return k.version(r, "s0") == "23" })
			frames <- k.event(eventDeleted, k.object("s1", "24", ""))
			r.until("deletion", func() bool { return r.get(k.kind, "ns", "s1") == nil })
			a.says(func(w http.ResponseWriter, _ *http.Request) {
				answer(w, k.list("30", k.object("s0", "23", ""), k.object("s2", "3", ""), k.object("s10", "21", "")))
			}, a.tell)
			frames <- nil
			r.until("what there is room for", func() bool { return r.get(k.kind, "ns", "s10") != nil && problems(s) == "" })
			if n := strings.Count(r.text(), "objects of the cluster are left out"); n != 1 {
				t.Errorf("got another number of log lines than one:\n%s", r.text())
			}
		})
	}
}

// TestEndlessObjects: an endless list of objects does not fill the memory.
func TestEndlessObjects(t *testing.T) {
	t.Parallel()
	a := newAPI(t, "/api/v1/services", says(services("5", "", service("good", "4"))))
	a.says(a.list, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaProtobuf)
		for i := 0; ; i++ {
			s := service(fmt.Sprint("s", i), fmt.Sprint(i+10))
			if !write(w, eventFrame(eventAdded, envelope("v1", "Service", &s))) {
				return
			}
		}
	})
	s, r, _ := run(t, a.config(), smallLimits)
	r.until("problem", func() bool { return strings.HasPrefix(problems(s), "services: at least 10000 objects left out") })
	if is := s.resource("services"); is.Objects > 100 || is.Error != "" {
		t.Errorf("services: %+v", is)
	}
	if _, removed := r.handed(); len(removed) > 0 {
		t.Errorf("removed %v", removed)
	}
}

// TestAnnotationsAreNotHeld: annotations that are not read do not count for limits.
func TestAnnotationsAreNotHeld(t *testing.T) {
	t.Parallel()
	var objects []corev1.Service
	for i := range 10 {
		s := service(fmt.Sprint("s", i), fmt.Sprint(i+1))
		s.Annotations = map[string]string{"tool.example/state": strings.Repeat("x", 10<<10), "networking.istio.io/exportTo": "."}
		objects = append(objects, s)
	}
	a := newAPI(t, "/api/v1/services", says(services("20", "", objects...)))
	s, r, _ := run(t, a.config(), func(s *Source) {
		smallLimits(s)
		s.Limits = Limits{Bytes: 10 << 10}
	})
	r.until("everything", func() bool { return r.synced == 1 })
	if got := problems(s); got != "" {
		t.Errorf("problems: %s", got)
	}
	for i := range 10 {
		o, ok := r.now(snapshot.KindService, "ns", fmt.Sprint("s", i)).(*snapshot.Service)
		if !ok || !slices.Equal(o.ExportTo, []string{"."}) {
			t.Errorf("service %d is %+v", i, o)
		}
	}
}

// TestPoliciesBeyondLimitsRefuse: what stands for security policies that are left out or too large
// refuses requests; if that is ignored, they count as not enforced.
func TestPoliciesBeyondLimitsRefuse(t *testing.T) {
	t.Parallel()
	var policies []string
	for _, name := range []string{"one", "two", "three"} {
		policies = append(policies, `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"`+name+`","namespace":"ns","resourceVersion":"4"}}`)
	}
	large := strings.Repeat("x", 5000)
	for name, tt := range map[string]struct {
		path   string
		list   http.HandlerFunc
		limits Limits
		want   []string     // not enforced, if that is ignored
		closed snapshot.Key // what refuses, if not
	}{
		"too many": {
			"/apis/security.istio.io/v1/authorizationpolicies",
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", mediaJSON)
				write(w, []byte(`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicyList","metadata":{"resourceVersion":"5"},"items":[`+strings.Join(policies, ",")+`]}`))
			},
			Limits{Objects: 1},
			[]string{"authorizationpolicies.security.istio.io"},
			snapshot.Key{Kind: snapshot.KindAuthorizationPolicy, Name: "left-out:"},
		},
		"too large": {
			"/apis/security.istio.io/v1/peerauthentications",
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", mediaJSON)
				write(w, []byte(`{"apiVersion":"security.istio.io/v1","kind":"PeerAuthenticationList","metadata":{"resourceVersion":"5"},"items":[{"apiVersion":"security.istio.io/v1",`+
					`"kind":"PeerAuthentication","metadata":{"name":"p","namespace":"ns","resourceVersion":"4"},"spec":{"selector":{"matchLabels":{"a":"`+large+`"}},"mtls":{"mode":"STRICT"}}}]}`))
			},
			Limits{Object: 4000},
			[]string{"PeerAuthentication ns/p"},
			snapshot.Key{Kind: snapshot.KindPeerAuthentication, Name: "p"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, tt.path, tt.list)
			s, r, _ := run(t, a.config(), func(s *Source) {
				smallLimits(s)
				s.Configuration, s.Limits = true, tt.limits
			})
			r.until("everything", func() bool { return r.synced == 1 })
			for _, p := range s.Status().Problems {
				if p.Unenforced {
					t.Errorf("%s is not enforced: %v", p.Object, p.Reasons)
				}
			}
			if got := r.now(tt.closed.Kind, "ns", tt.closed.Name); got == nil {
				t.Errorf("%v does not refuse; %+v", tt.closed, s.Status().Problems)
			}
			ignoring, r, _ := run(t, a.config(), func(s *Source) {
				smallLimits(s)
				s.Configuration, s.Limits, s.IgnorePolicies = true, tt.limits, true
			})
			r.until("everything", func() bool { return r.synced == 1 })
			var got []string
			for _, p := range ignoring.Status().Problems {
				if p.Unenforced {
					got = append(got, p.Object)
				}
			}
			if !slices.Equal(got, tt.want) || r.now(tt.closed.Kind, "ns", tt.closed.Name) != nil {
				t.Errorf("not enforced: %v, want %v; %+v", got, tt.want, ignoring.Status().Problems)
			}
		})
	}
}

// TestPoliciesThatFitAgainAreEnforced: what stands for policies that are left out is gone when none
// is left out.
func TestPoliciesThatFitAgainAreEnforced(t *testing.T) {
	t.Parallel()
	policies := func(names ...string) http.HandlerFunc {
		items := make([]string, len(names))
		for i, name := range names {
			items[i] = `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"` + name + `","namespace":"ns","resourceVersion":"4"}}`
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaJSON)
			write(w, []byte(`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicyList","metadata":{"resourceVersion":"5"},"items":[`+strings.Join(items, ",")+`]}`))
		}
	}
	a := newAPI(t, "/apis/security.istio.io/v1/authorizationpolicies", policies("one", "two"))
	_, r, _ := run(t, a.config(), func(s *Source) {
		smallLimits(s)
		s.Configuration, s.Limits = true, Limits{Objects: 1}
	})
	refuses := func() bool { return r.get(snapshot.KindAuthorizationPolicy, "ns", "left-out:") != nil }
	r.until("a policy that refuses", refuses)
	a.says(policies("two"), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	close(a.expired)
	r.until("the policy", func() bool { return !refuses() && r.get(snapshot.KindAuthorizationPolicy, "ns", "two") != nil })
}
