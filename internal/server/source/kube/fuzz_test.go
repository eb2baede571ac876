package kube

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxFuzzed bounds an object of the targets, in bytes.
const maxFuzzed = 1 << 10

// FuzzList: no object of a list is larger than allowed, and a stripped object can be
// stripped again.
func FuzzList(f *testing.F) {
	list := services("5", "more", service("a", "4"), service("b", "5"))
	f.Add(list, false)
	f.Add(list[:len(list)-3], false)
	f.Add(append([]byte(magic), field(envelopeRaw, 1<<50)...), false)
	f.Add([]byte(`{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a"}}]}`), true)
	f.Add([]byte(`{"items":null,"kind":[1]}`), true)
	f.Fuzz(func(t *testing.T, answer []byte, json bool) {
		form := objectFormat{version: "v1", kind: "Service", json: json, max: maxFuzzed}
		_, _ = form.list(bytes.NewReader(answer), func(it item) error {
			if len(it.bytes) > maxFuzzed || it.fault != nil && it.head.key.name == "" {
				t.Errorf("an object %q of %d bytes, at most %d are read", it.head.key, len(it.bytes), maxFuzzed)
			}
			checkStrip(t, it.bytes)
			return nil
		})
	})
}

// FuzzWatch: no object of an event is larger than allowed.
func FuzzWatch(f *testing.F) {
	s := service("a", "4")
	event := eventFrame(eventAdded, envelope("v1", "Service", &s))
	f.Add(append(event, eventFrame(eventError, envelope("v1", "Status", &metav1.Status{Code: 410}))...), false)
	f.Add(event[:len(event)-1], false)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0}, false)
	f.Add([]byte(`{"type":"ADDED","object":{"apiVersion":"v1","kind":"Service"}}{"type":"ERROR","object":{"code":410}}`), true)
	f.Add([]byte(`{"type":"BOOKMARK"} null`), true)
	f.Fuzz(func(t *testing.T, answer []byte, json bool) {
		next := objectFormat{version: "v1", kind: "Service", json: json, max: maxFuzzed}.events(bytes.NewReader(answer))
		media := mediaProtobuf
		if json {
			media = mediaJSON
		}
		for range len(answer) + 1 {
			e, err := next()
			if err != nil {
				return
			}
			if e.typ == eventError {
				_ = parseStatus(e.object.bytes, media)
			} else if !json {
				checkStrip(t, e.object.bytes)
			}
		}
		t.Errorf("more events than bytes of %q", answer)
	})
}

// checkStrip checks that a stripped object grows by no more than the padding of lengths,
// and that stripping it again changes nothing.
func checkStrip(t *testing.T, object []byte) {
	t.Helper()
	kept, err := podFields.strip(nil, object)
	if err != nil {
		return
	}
	if len(kept) > lengthSize*len(object) {
		t.Errorf("%d bytes became %d", len(object), len(kept))
	}
	again, err := podFields.strip(nil, kept)
	if err != nil || !bytes.Equal(again, kept) {
		t.Errorf("%x was stripped to %x, and that to %x, %v", object, kept, again, err)
	}
	_ = (&corev1.Pod{}).Unmarshal(kept) // must not panic
}
