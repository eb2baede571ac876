package output

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
)

// TestCase is one case of a JUnit report.
type TestCase struct {
	Class, Name string
	// Failure is nil if the case passed.
	Failure *TestFailure
}

// TestFailure is a failure: its kind, a sentence, and details.
type TestFailure struct{ Type, Message, Text string }

// WriteJUnit writes a JUnit report of one suite, for CI systems. Characters that are
// not printable, which XML could not hold, become escapes. It does not use the encoder of
// encoding/xml, which adds 70 KB to the binary.
func WriteJUnit(w io.Writer, suite string, cases []TestCase) error {
	failures := 0
	var body bytes.Buffer
	for _, c := range cases {
		fmt.Fprintf(&body, "    <testcase classname=\"%s\" name=\"%s\">", xmlText(c.Class), xmlText(c.Name))
		if f := c.Failure; f != nil {
			failures++
			fmt.Fprintf(&body, "\n      <failure type=\"%s\" message=\"%s\">%s</failure>\n    ", xmlText(f.Type), xmlText(f.Message), xmlText(f.Text))
		}
		body.WriteString("</testcase>\n")
	}
	_, err := fmt.Fprintf(w, "%s<testsuites>\n  <testsuite name=\"%s\" tests=\"%d\" failures=\"%d\">\n%s  </testsuite>\n</testsuites>\n",
		xml.Header, xmlText(suite), len(cases), failures, body.Bytes())
	return err
}

func xmlText(s string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(Escape(s))) // a Buffer never fails
	return out.String()
}
