package kube

import (
	"bufio"
	"bytes"
	stdjson "encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jsonReader reads the values of a JSON text one by one. It does not validate them, so
// the value after a faulty object is found.
type jsonReader struct {
	r   *bufio.Reader
	max int // bytes to keep of one value
	buf []byte
}

func (f objectFormat) jsonReader(r io.Reader) *jsonReader {
	return &jsonReader{r: bufio.NewReaderSize(r, 16<<10), max: f.max}
}

// peek skips spaces and returns the next byte without reading it.
func (d *jsonReader) peek() (byte, error) {
	for {
		c, err := d.r.ReadByte()
		if err != nil {
			return 0, err
		}
		if !isSpace(c) {
			return c, d.r.UnreadByte()
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func (d *jsonReader) expect(want byte) error {
	c, err := d.peek()
	if err != nil {
		return noEOF(err)
	}
	if c != want {
		return badContent("is not the JSON of a list")
	}
	_, err = d.r.Discard(1)
	return err
}

// value reads a value. It returns the first max bytes of the value and its whole size.
// It returns io.EOF if there is no value.
func (d *jsonReader) value() (b []byte, size int64, err error) {
	if _, err := d.peek(); err != nil {
		return nil, 0, err
	}
	d.buf = d.buf[:0]
	depth, quoted, escaped := 0, false, false
	for {
		c, err := d.r.ReadByte()
		if err != nil {
			return nil, 0, noEOF(err)
		}
		if depth == 0 && !quoted && size > 0 && (isSpace(c) || c == ',' || c == ':' || c == '}' || c == ']') {
			return d.buf, size, d.r.UnreadByte() // after a number or a literal
		}
		if size++; size <= int64(d.max) {
			d.buf = append(d.buf, c)
		}
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if depth <= 0 && !quoted && (c == '"' || c == '}' || c == ']') {
			return d.buf, size, nil
		}
	}
}

// each calls part to read each part of a list or object.
func (d *jsonReader) each(open, end byte, part func() error) error {
	if err := d.expect(open); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := d.peek()
		switch {
		case err != nil:
			return noEOF(err)
		case c == end:
			return d.expect(end)
		case !first:
			if err := d.expect(','); err != nil {
				return err
			}
		}
		if err := part(); err != nil {
			return err
		}
	}
}

// small decodes a value of at most max bytes.
func (d *jsonReader) small(into any) error {
	b, size, err := d.value()
	if err != nil {
		return noEOF(err)
	}
	if size > int64(d.max) {
		return badContent("a part of %d bytes, at most %d are read", size, d.max)
	}
	return stdjson.Unmarshal(b, into)
}

func (f objectFormat) listJSON(r io.Reader, each func(item) error) (page, error) {
	d := f.jsonReader(r)
	var version, kind string
	var meta metav1.ListMeta
	err := d.each('{', '}', func() error {
		var key string
		if err := d.small(&key); err != nil {
			return err
		}
		if err := d.expect(':'); err != nil {
			return err
		}
		switch key {
		case "apiVersion":
			return d.small(&version)
		case "kind":
			return d.small(&kind)
		case "metadata":
			return d.small(&meta)
		case "items":
			return d.items(each)
		}
		_, _, err := d.value()
		return err
	})
	p := page{version: meta.ResourceVersion, next: meta.Continue}
	if err == nil {
		if err := checkKind(version, kind, f.version, f.kind+"List"); err != nil {
			return p, &answerError{err}
		}
	}
	return p, jsonFault(err)
}

func (d *jsonReader) items(each func(item) error) error {
	c, err := d.peek()
	if err != nil {
		return noEOF(err)
	}
	if c != '[' { // null is none
		var none []struct{}
		return d.small(&none)
	}
	return d.each('[', ']', func() error {
		b, size, err := d.value()
		if err != nil {
			return noEOF(err)
		}
		it := item{bytes: b}
		if size > int64(d.max) {
			if it, err = unread(headOfJSON(b, ""), tooLarge(size, d.max)); err != nil {
				return err
			}
		}
		return each(it)
	})
}

// jsonFault converts faults of the content to an *answerError. Errors of the transport
// stay.
func jsonFault(err error) error {
	if _, ok := errors.AsType[*stdjson.SyntaxError](err); ok {
		return &answerError{err}
	}
	if _, ok := errors.AsType[*stdjson.UnmarshalTypeError](err); ok {
		return &answerError{err}
	}
	return asAnswer(noEOF(err))
}

func (f objectFormat) eventsJSON(r io.Reader) func() (event, error) {
	d := f.jsonReader(r)
	return func() (event, error) {
		b, size, err := d.value()
		if errors.Is(err, io.EOF) {
			return event{}, io.EOF
		}
		if err != nil {
			return event{}, jsonFault(err)
		}
		var e struct {
			Type   string             `json:"type"`
			Object stdjson.RawMessage `json:"object"`
		}
		fault := stdjson.Unmarshal(b, &e)
		if size > int64(d.max) {
			fault = tooLarge(size, d.max)
		}
		if fault == nil {
			return event{e.Type, item{bytes: bytes.TrimSpace(e.Object)}}, nil
		}
		it, err := unread(headOfJSON(b, "/object"), fault)
		if err != nil {
			return event{}, jsonFault(err)
		}
		return event{textsAt(b, "/type")[0], it}, nil
	}
}

// headOfJSON returns the name of the object at a place in a text, which may be truncated.
func headOfJSON(text []byte, at jsontext.Pointer) head {
	texts := textsAt(text, at+"/metadata/name", at+"/metadata/namespace", at+"/metadata/resourceVersion")
	return head{objectKey{name: texts[0], namespace: texts[1]}, texts[2]}
}

// textsAt returns the strings at some places in a text, as far as the text is JSON.
func textsAt(text []byte, places ...jsontext.Pointer) []string {
	out := make([]string, len(places))
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return out
		}
		within, n := dec.StackIndex(dec.StackDepth())
		if token.Kind() != '"' || within == '{' && n%2 == 1 { // the name of a member
			continue
		}
		if i := slices.Index(places, dec.StackPointer()); i >= 0 {
			out[i] = token.String()
		}
	}
}
