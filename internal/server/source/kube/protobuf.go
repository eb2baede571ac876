package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// objectFormat is the format of the objects of one resource.
type objectFormat struct {
	version, kind string // such as networking.istio.io/v1, Gateway
	json          bool
	max           int // size of one object, in bytes
}

// page is the metadata of a list.
type page struct {
	version string // resource version of the list, where a watch starts
	next    string // token for the rest, empty when there is none
}

// item is one object of a list or a watch. Its bytes are valid until the next one is
// read.
type item struct {
	bytes []byte
	// fault is the reason why the object is not read, such as its size. bytes is then
	// empty, and head names the object.
	fault error
	head  head
}

// head names an object.
type head struct {
	key     objectKey
	version string
}

// unread returns an item for an object that is not read. If the object has no name, the
// whole response is invalid.
func unread(h head, fault error) (item, error) {
	if h.key.name == "" {
		return item{}, &contentError{fault}
	}
	return item{fault: fault, head: h}, nil
}

func tooLarge[N int64 | uint64](size N, most int) error {
	return fmt.Errorf("has %d bytes, at most %d are read", size, most)
}

// list reads a list and holds one object at a time.
func (f objectFormat) list(r io.Reader, each func(item) error) (page, error) {
	if f.json {
		return f.listJSON(r, each)
	}
	d := &protoReader{r: bufio.NewReaderSize(r, 64<<10), max: f.max}
	p, err := d.list(f.version, f.kind+"List", each)
	return p, asAnswer(err)
}

// asAnswer converts a fault of the content to an *answerError. Errors of the transport
// and of the caller's function stay.
func asAnswer(err error) error {
	if bad, ok := errors.AsType[*contentError](err); ok {
		return &answerError{bad.err}
	}
	return err
}

// contentError is a fault of the content of a response.
type contentError struct{ err error }

func (e *contentError) Error() string { return e.err.Error() }

func badContent(format string, args ...any) error { return &contentError{fmt.Errorf(format, args...)} }

// protoReader reads the fields of a message one by one.
type protoReader struct {
	r    *bufio.Reader
	max  int
	read int64
	buf  []byte
}

// maxHead bounds the metadata of a list and the part of an oversized object that is
// read to name it, in bytes.
const maxHead = 64 << 10

func (d *protoReader) list(version, kind string, each func(item) error) (page, error) {
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

func (d *protoReader) items(length uint64, p *page, each func(item) error) error {
	for end := d.read + int64(length); d.read < end; {
		number, length, err := d.field()
		if err != nil {
			return err
		}
		if number == listItems {
			object, err := d.item(length)
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

// field reads the number of the next field and the length of its content. In lists and
// envelopes every field has a length.
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

// item reads an object. It keeps only the name of an object that is too large.
func (d *protoReader) item(length uint64) (item, error) {
	if length <= uint64(d.max) {
		b, err := d.take(length, d.max)
		return item{bytes: b}, err
	}
	b, err := d.begin(length)
	if err != nil {
		return item{}, err
	}
	it, err := unread(headOf(b), tooLarge(length, d.max))
	if err != nil {
		return item{}, err
	}
	return it, d.skip(length - uint64(len(b)))
}

// begin reads the beginning of an oversized part.
func (d *protoReader) begin(length uint64) ([]byte, error) {
	return d.take(min(length, maxHead), maxHead)
}

func (d *protoReader) skip(length uint64) error {
	n, err := io.CopyN(io.Discard, d.r, int64(min(length, math.MaxInt64)))
	d.read += n
	return noEOF(err)
}

// headOf returns the name of the object in a message, which may be truncated.
func headOf(object []byte) head {
	meta, _ := part(object, 1)
	text := func(number protowire.Number) string {
		if b, whole := part(meta, number); whole {
			return string(b)
		}
		return ""
	}
	return head{objectKey{name: text(1), namespace: text(3)}, text(6)}
}

// part returns a field of a message, which may be truncated, and reports whether the
// field is complete.
func part(message []byte, want protowire.Number) (content []byte, whole bool) {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if number == want && typ == protowire.BytesType {
			length, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return nil, false
			}
			message = message[n:]
			return message[:min(length, uint64(len(message)))], length <= uint64(len(message))
		}
		if n = protowire.ConsumeFieldValue(number, typ, message); n < 0 {
			return nil, false
		}
		message = message[n:]
	}
	return nil, false
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

// meter is a reader with a limit that can be set again.
type meter struct {
	r    io.Reader
	left int
	over error // the error at the limit
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, m.over
	}
	n, err := m.r.Read(b[:min(len(b), m.left)])
	m.left -= n
	return n, err
}

// event is one event of a watch.
type event struct {
	typ    string
	object item // a Status if typ is eventError
}

// Types of events.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// events returns a function that reads the next event of a watch. io.EOF is the regular
// end of the watch.
func (f objectFormat) events(r io.Reader) func() (event, error) {
	if f.json {
		return f.eventsJSON(r)
	}
	d := &protoReader{r: bufio.NewReaderSize(r, 16<<10), max: f.max}
	return func() (event, error) {
		e, err := d.event()
		if err != nil {
			return event{}, asAnswer(err)
		}
		if e.typ == eventError || e.object.fault != nil {
			return e, nil
		}
		if e.object.bytes, err = openEnvelope(e.object.bytes, f.version, f.kind); err != nil {
			return event{}, &answerError{err}
		}
		return e, nil
	}
}

// frameSize is the size of the length before each event, in bytes.
const frameSize = 4

func (d *protoReader) event() (event, error) {
	var size [frameSize]byte
	if _, err := io.ReadFull(d.r, size[:]); err != nil {
		return event{}, err // io.EOF only before the first byte
	}
	length := uint64(bigEndian(size[:]))
	if length > uint64(d.max) {
		return d.largeEvent(length)
	}
	b, err := d.take(length, d.max)
	if err != nil {
		return event{}, err
	}
	var w metav1.WatchEvent
	// RawExtension copies the object, which is small.
	if err := w.Unmarshal(b); err != nil {
		return event{}, badContent("%w", errMalformed)
	}
	return event{w.Type, item{bytes: w.Object.Raw}}, nil
}

// largeEvent reads the type and the name of the object of an oversized event.
func (d *protoReader) largeEvent(length uint64) (event, error) {
	b, err := d.begin(length)
	if err != nil {
		return event{}, err
	}
	typ, _ := part(b, 1)
	extension, _ := part(b, 2)
	envelope, _ := part(extension, 1)
	object, _ := part(bytes.TrimPrefix(envelope, []byte(magic)), envelopeRaw)
	it, err := unread(headOf(object), tooLarge(length, d.max))
	if err != nil {
		return event{}, err
	}
	return event{string(typ), it}, d.skip(length - uint64(len(b)))
}

// openEnvelope returns the object in an envelope, and checks its version and kind.
func openEnvelope(b []byte, version, kind string) ([]byte, error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, errors.New("is not an object in protobuf")
	}
	var head, raw []byte
	for b = b[len(magic):]; len(b) > 0; {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errMalformed
		}
		size := protowire.ConsumeFieldValue(number, typ, b[n:])
		if size < 0 {
			return nil, errMalformed
		}
		if typ == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(b[n : n+size])
			switch number {
			case envelopeType:
				head = content
			case envelopeRaw:
				raw = content
			}
		}
		b = b[n+size:]
	}
	return raw, checkType(head, version, kind)
}

// magic begins every object in protobuf. A message with these fields follows.
const (
	magic = "k8s\x00"

	envelopeType = 1 // apiVersion and kind
	envelopeRaw  = 2 // the object
)

// bigEndian decodes the length of a frame.
func bigEndian(b []byte) int { return int(binary.BigEndian.Uint32(b)) }
