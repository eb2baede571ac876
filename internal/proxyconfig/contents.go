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

// comparer compares what resources hold. It is for one goroutine at a time.
type comparer struct {
	from  [2]string // where the sides are from, for errors
	lists map[protoreflect.FullName][]protoreflect.Name
}

// compare says how two resources of a type differ: by a unified diff without a header,
// or in what is redacted alone. Most are the same to the byte, and the others cost a
// thousand times as much.
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

// texts are the texts of both, and whether anything is redacted in them.
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

// text writes a resource so that what means the same is the same text, whoever
// printed it: proto JSON in lines, with what is sensitive redacted unless it is to be
// revealed, and with lists whose order means nothing in one order. What this build
// does not know is compared as it came.
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

// differHidden compares two texts in which nothing is redacted, and which are shown the
// same. What is shown as it came was redacted before, by Envoy itself: it may be
// anything, and is taken for the same.
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
