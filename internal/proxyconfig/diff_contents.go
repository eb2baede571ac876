package proxyconfig

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/output"
)

// comparer compares the contents of resources. It is for one goroutine at a time.
type comparer struct {
	from  [2]string // where the sides are from, for errors
	lists map[protoreflect.FullName][]protoreflect.Name
}

// compare returns a unified diff without a header of two resources of a type, or whether
// only redacted values differ. Most resources are equal to the byte; the others take a
// thousand times as long.
func (c *comparer) compare(raw [2]jsontext.Value, of proto.Message) (diff string, hidden bool, err error) {
	if bytes.Equal(raw[0], raw[1]) {
		return "", false, nil
	}
	texts, redacts, err := c.texts(raw, of, false)
	if err != nil {
		return "", false, err
	}
	if texts[0] != texts[1] {
		return output.UnifiedDiff(texts[0], texts[1]), false, nil
	}
	if !redacts {
		return "", false, nil
	}
	revealed, _, err := c.texts(raw, of, true)
	if err != nil {
		return "", false, err
	}
	return "", differHidden(texts[0], revealed[0], revealed[1]), nil
}

// texts returns the texts of both resources, and whether they have redacted values.
func (c *comparer) texts(raw [2]jsontext.Value, of proto.Message, reveal bool) (texts [2]string, redacts bool, err error) {
	for i := range raw {
		text, redacted, err := c.text(raw[i], of, reveal)
		if err != nil {
			return texts, false, fmt.Errorf("%s: %w", c.from[i], err)
		}
		texts[i], redacts = text, redacts || redacted
	}
	return texts, redacts, nil
}

// text returns the same text for resources of the same meaning: proto JSON in lines, with
// lists whose order has no meaning sorted, and with secrets redacted unless reveal is
// set. Extensions that this build does not know stay as they are.
func (c *comparer) text(raw jsontext.Value, of proto.Message, reveal bool) (text string, redacts bool, err error) {
	value, redacts, err := convert(raw, of, reveal)
	if err != nil {
		return "", false, err
	}
	var message anypb.Any
	if err := protojson.Unmarshal(value, &message); err == nil {
		arrange(&message, c.lists)
		if known, err := protojson.Marshal(&message); err == nil {
			value = known
		}
	} else if err := value.Canonicalize(); err != nil {
		return "", false, err
	}
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return "", false, err
	}
	return string(bytes.TrimSpace(value)), redacts, nil
}

// differHidden compares two texts without redaction whose redacted texts are equal to
// shown. Values that Envoy itself redacted, which are the same in shown, count as equal.
func differHidden(shown, a, b string) bool {
	is, x, y := strings.Split(shown, "\n"), strings.Split(a, "\n"), strings.Split(b, "\n")
	if len(x) != len(is) || len(y) != len(is) { // what is redacted to 0 has no line
		return a != b && a != shown && b != shown
	}
	for i := range is {
		if x[i] != y[i] && x[i] != is[i] && y[i] != is[i] {
			return true
		}
	}
	return false
}
