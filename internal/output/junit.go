package output

import (
	"encoding/xml"
	"fmt"
	"io"
)

// TestCase is one case of a JUnit report.
type TestCase struct {
	Class string `xml:"classname,attr"`
	Name  string `xml:"name,attr"`
	// Failure is nil if the case passed.
	Failure *TestFailure `xml:"failure,omitempty"`
}

// TestFailure is a failure: its kind, a sentence, and details.
type TestFailure struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Cases    []TestCase `xml:"testcase"`
}

// WriteJUnit writes a JUnit report of one suite, for CI systems. Characters that are
// not printable, which XML could not hold, become escapes.
func WriteJUnit(w io.Writer, suite string, cases []TestCase) error {
	s := junitSuite{Name: suite, Tests: len(cases)}
	for _, c := range cases {
		c.Class, c.Name = Escape(c.Class), Escape(c.Name)
		if f := c.Failure; f != nil {
			s.Failures++
			c.Failure = &TestFailure{Escape(f.Type), Escape(f.Message), Escape(f.Text)}
		}
		s.Cases = append(s.Cases, c)
	}
	data, err := xml.MarshalIndent(junitSuites{Suite: s}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode JUnit report: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, data)
	return err
}
