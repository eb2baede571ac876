// Package kubejson checks the JSON of objects of the Kubernetes API before it is decoded.
package kubejson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	// hugeQuantity matches amounts that Kubernetes' parser takes hours for, such as 1e-999999999, and
	// those of many digits. No amount needs three digits of an exponent.
	hugeQuantity = regexp.MustCompile(`^[+-]?[0-9.]*[eE][+-]?[0-9]{3}|^[+-]?[0-9.]{65}`)
	// maybeHuge matches every JSON text with such an amount, and few others.
	maybeHuge = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{3}|[0-9.]{65}|\\u`)
)

// CheckQuantity refuses an amount that takes long to parse.
func CheckQuantity(text string) error {
	if hugeQuantity.MatchString(text) {
		return fmt.Errorf("%.100q is not an amount, such as 100m or 128Mi", text)
	}
	return nil
}

// Check refuses the JSON of an object of a type if it has an amount that takes long to parse. Other
// faults are left to the decoder.
func Check(text []byte, object any) error {
	if !maybeHuge.Match(text) {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	err := check(d, reflect.TypeOf(object))
	if isSyntax(err) && !json.Valid(text) {
		return nil
	}
	return err
}

// check reads a value of a type, which is nil if it is not known.
func check(d *jsontext.Decoder, as reflect.Type) error {
	for as != nil && as.Kind() == reflect.Pointer {
		as = as.Elem()
	}
	token, err := d.ReadToken()
	if err != nil {
		return err
	}
	switch token.Kind() {
	case '{':
		for d.PeekKind() != '}' {
			name, err := d.ReadToken()
			if err != nil {
				return err
			}
			text := name.String()
			if err := check(d, below(as, text)); err != nil {
				return fault(text, err)
			}
		}
	case '[':
		for d.PeekKind() != ']' {
			if err := check(d, below(as, "")); err != nil {
				return err
			}
		}
	default:
		if as == reflect.TypeFor[resource.Quantity]() {
			return CheckQuantity(token.String())
		}
		return nil
	}
	_, err = d.ReadToken()
	return err
}

func isSyntax(err error) bool {
	_, is := errors.AsType[*jsontext.SyntacticError](err)
	return is || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// fault names the field of an error about an amount.
func fault(field string, err error) error {
	if isSyntax(err) {
		return err
	}
	return fmt.Errorf("%.100s: %w", field, err)
}

// below returns the type of a field of a type, or of the items of a list or a map; nil if it is not
// known. The case of a name counts as little as for encoding/json.
func below(as reflect.Type, name string) reflect.Type {
	if as == nil {
		return nil
	}
	switch as.Kind() {
	case reflect.Map, reflect.Slice:
		return as.Elem()
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(as) {
			if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); tag != "" && strings.EqualFold(tag, name) {
				return field.Type
			}
		}
	}
	return nil
}
