package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// form is how objects of one resource come: as which kind of which version, and
// in JSON or in protobuf.
type form struct {
	version, kind string // such as networking.istio.io/v1, Gateway
	json          bool
	max           int // size of one object, in bytes
}

// page is what a list says beside its objects.
type page struct {
	version string // of the list, from where to watch
	next    string // token for the rest, empty when there is none
}

// list reads a list object by object, so that never more than one is held. The
// bytes that each is called with are only valid until it returns.
func (f form) list(r io.Reader, each func(object []byte) error) (page, error) {
	if f.json {
		return f.listJSON(r, each)
	}
	d := &protoReader{r: bufio.NewReaderSize(r, 64<<10), max: f.max}
	p, err := d.list(f.version, f.kind+"List", each)
	return p, asAnswer(err)
}

// asAnswer marks what is wrong with the content of an answer, as opposed to its
// transport and to what the reader of its objects says.
func asAnswer(err error) error {
	if bad, ok := errors.AsType[*contentError](err); ok {
		return &answerError{bad.err}
	}
	return err
}

// contentError is a fault of what was read.
type contentError struct{ err error }

func (e *contentError) Error() string { return e.err.Error() }

func badContent(format string, args ...any) error { return &contentError{fmt.Errorf(format, args...)} }

// protoReader reads the fields of a message as they come.
type protoReader struct {
	r    *bufio.Reader
	max  int
	read int64
	buf  []byte
}

// maxHead is the size of what a list says beside its objects, in bytes.
const maxHead = 64 << 10

func (d *protoReader) list(version, kind string, each func([]byte) error) (page, error) {
	var p page
	start := make([]byte, len(magic))
	if _, err := io.ReadFull(d.r, start); err != nil {
		return p, err
	}
	if string(start) != magic {
		return p, badContent("is not an object in protobuf")
	}
	typed := false
	for {
		number, length, err := d.field()
		switch {
		case errors.Is(err, io.EOF) && typed:
			return p, nil
		case err != nil:
			return p, noEOF(err)
		case number == envelopeType:
			head, err := d.take(length, maxHead)
			if err != nil {
				return p, err
			}
			if err := checkType(head, version, kind); err != nil {
				return p, &contentError{err}
			}
			typed = true
		case number == envelopeRaw && typed:
			if err := d.items(length, &p, each); err != nil {
				return p, noEOF(err)
			}
		default:
			if _, err := d.take(length, maxHead); err != nil {
				return p, err
			}
		}
	}
}

// Fields of every list.
const (
	listMeta  = 1
	listItems = 2
)

func (d *protoReader) items(length uint64, p *page, each func([]byte) error) error {
	for end := d.read + int64(length); d.read < end; {
		number, length, err := d.field()
		if err != nil {
			return err
		}
		if number == listItems {
			object, err := d.take(length, d.max)
			if err != nil {
				return err
			}
			if err := each(object); err != nil {
				return err
			}
			continue
		}
		head, err := d.take(length, maxHead)
		if err != nil {
			return err
		}
		if number != listMeta {
			continue
		}
		var meta metav1.ListMeta
		if err := meta.Unmarshal(head); err != nil {
			return badContent("%w", errMalformed)
		}
		p.version, p.next = meta.ResourceVersion, meta.Continue
	}
	return nil
}

// field reads the number of the next field and the length of its content. All
// fields of lists and envelopes have one.
func (d *protoReader) field() (protowire.Number, uint64, error) {
	tag, err := binary.ReadUvarint(d.r)
	if err != nil {
		return 0, 0, err // io.EOF only before the first byte
	}
	number, typ := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber || typ != protowire.BytesType {
		return 0, 0, badContent("%w", errMalformed)
	}
	length, err := binary.ReadUvarint(d.r)
	if err != nil {
		return 0, 0, noEOF(err)
	}
	d.read += int64(protowire.SizeVarint(tag) + protowire.SizeVarint(length))
	return number, length, nil
}

func (d *protoReader) take(length uint64, most int) ([]byte, error) {
	if length > uint64(most) {
		return nil, badContent("a part of %d bytes, at most %d are read", length, most)
	}
	if uint64(cap(d.buf)) < length {
		d.buf = make([]byte, length+length/4)
	}
	b := d.buf[:length]
	n, err := io.ReadFull(d.r, b)
	d.read += int64(n)
	return b, noEOF(err)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func checkType(head []byte, version, kind string) error {
	var is struct{ version, kind string }
	for len(head) > 0 {
		number, typ, n := protowire.ConsumeTag(head)
		if n < 0 || typ != protowire.BytesType {
			return errMalformed
		}
		content, size := protowire.ConsumeBytes(head[n:])
		if size < 0 {
			return errMalformed
		}
		switch number {
		case 1:
			is.version = string(content)
		case 2:
			is.kind = string(content)
		}
		head = head[n+size:]
	}
	return checkKind(is.version, is.kind, version, kind)
}

func checkKind(gotVersion, gotKind, version, kind string) error {
	if gotVersion != version || gotKind != kind {
		return fmt.Errorf("is a %.100q of %.100q, want %s of %s", gotKind, gotVersion, kind, version)
	}
	return nil
}

// meter lets so many bytes pass until it is set again.
type meter struct {
	r    io.Reader
	left int
	over error // what it says when there is more
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, m.over
	}
	n, err := m.r.Read(b[:min(len(b), m.left)])
	m.left -= n
	return n, err
}

// jsonReader is a decoder of which each value has a bound, give or take what it
// reads ahead.
func (f form) jsonReader(r io.Reader) (*stdjson.Decoder, func()) {
	m := &meter{r: r, left: f.max, over: badContent("a part of more than %d bytes", f.max)}
	return stdjson.NewDecoder(m), func() { m.left = f.max }
}

func (f form) listJSON(r io.Reader, each func([]byte) error) (page, error) {
	dec, reset := f.jsonReader(r)
	var p page
	var version, kind string
	err := func() error {
		if err := delim(dec, '{'); err != nil {
			return err
		}
		for dec.More() {
			reset()
			key, err := dec.Token()
			if err != nil {
				return err
			}
			switch key {
			case "apiVersion":
				err = dec.Decode(&version)
			case "kind":
				err = dec.Decode(&kind)
			case "metadata":
				var meta metav1.ListMeta
				err = dec.Decode(&meta)
				p.version, p.next = meta.ResourceVersion, meta.Continue
			case "items":
				err = jsonItems(dec, reset, each)
			default:
				var other stdjson.RawMessage
				err = dec.Decode(&other)
			}
			if err != nil {
				return err
			}
		}
		return delim(dec, '}')
	}()
	if err == nil {
		if err := checkKind(version, kind, f.version, f.kind+"List"); err != nil {
			return p, &answerError{err}
		}
	}
	return p, jsonFault(err)
}

func jsonItems(dec *stdjson.Decoder, reset func(), each func([]byte) error) error {
	open, err := dec.Token()
	if err != nil || open == nil {
		return err // null is none
	}
	if open != stdjson.Delim('[') {
		return badContent("items is not a list")
	}
	var object stdjson.RawMessage
	for dec.More() {
		reset()
		if err := dec.Decode(&object); err != nil {
			return err
		}
		if err := each(object); err != nil {
			return err
		}
	}
	reset()
	return delim(dec, ']')
}

func delim(dec *stdjson.Decoder, want stdjson.Delim) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != want {
		return badContent("is not the JSON of a list")
	}
	return nil
}

// jsonFault tells faults of the content from those of the transport.
func jsonFault(err error) error {
	if _, ok := errors.AsType[*stdjson.SyntaxError](err); ok {
		return &answerError{err}
	}
	if _, ok := errors.AsType[*stdjson.UnmarshalTypeError](err); ok {
		return &answerError{err}
	}
	return asAnswer(noEOF(err))
}

// event is one of a watch. Its object is only valid until the next is read.
type event struct {
	typ    string
	object []byte // of the form, or a Status when typ is that of an error
}

// Types of events.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// events reads a watch. The function that it returns gives the next event;
// io.EOF is the end of a watch that ended well.
func (f form) events(r io.Reader) func() (event, error) {
	if f.json {
		return f.eventsJSON(r)
	}
	d := &protoReader{r: bufio.NewReaderSize(r, 16<<10), max: f.max}
	return func() (event, error) {
		e, err := d.event()
		if err != nil {
			return event{}, asAnswer(err)
		}
		kind := f.kind
		if e.typ == eventError {
			return e, nil
		}
		if e.object, err = openEnvelope(e.object, f.version, kind); err != nil {
			return event{}, &answerError{err}
		}
		return e, nil
	}
}

// frameSize is the size of the length that stands before each event.
const frameSize = 4

func (d *protoReader) event() (event, error) {
	var size [frameSize]byte
	if _, err := io.ReadFull(d.r, size[:]); err != nil {
		return event{}, err // io.EOF only before the first byte
	}
	b, err := d.take(uint64(bigEndian(size[:])), d.max)
	if err != nil {
		return event{}, err
	}
	var w metav1.WatchEvent
	// RawExtension copies what it reads; an event is small.
	if err := w.Unmarshal(b); err != nil {
		return event{}, badContent("%w", errMalformed)
	}
	return event{w.Type, w.Object.Raw}, nil
}

func (f form) eventsJSON(r io.Reader) func() (event, error) {
	dec, reset := f.jsonReader(r)
	return func() (event, error) {
		reset()
		var e struct {
			Type   string             `json:"type"`
			Object stdjson.RawMessage `json:"object"`
		}
		err := dec.Decode(&e)
		switch {
		case errors.Is(err, io.EOF):
			return event{}, io.EOF
		case err != nil:
			return event{}, jsonFault(err)
		}
		return event{e.Type, bytes.TrimSpace(e.Object)}, nil
	}
}
