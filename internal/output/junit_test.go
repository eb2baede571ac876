package output

import (
	"bytes"
	"encoding/xml"
	"strings"
	"testing"
)

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string `xml:"name,attr"`
	Tests    int    `xml:"tests,attr"`
	Failures int    `xml:"failures,attr"`
	Cases    []struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Failure *junitFailure `xml:"failure"`
	} `xml:"testcase"`
}

type junitFailure struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func TestWriteJUnit(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	err := WriteJUnit(&b, "suite", []TestCase{
		{Class: "good", Name: "a"},
		{Class: "bad", Name: "b <\x00>", Failure: &TestFailure{Type: "error", Message: "it is \"broken\"\x1b", Text: "first\nsecond"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	s := got.Suite
	if s.Name != "suite" || s.Tests != 2 || s.Failures != 1 || len(s.Cases) != 2 || s.Cases[0].Failure != nil {
		t.Errorf("got %+v", s)
	}
	if f := s.Cases[1].Failure; f == nil || f.Type != "error" || f.Message != `it is "broken"\x1b` || f.Text != `first\nsecond` || s.Cases[1].Name != `b <\x00>` {
		t.Errorf("failure is %+v", s.Cases[1])
	}
	if !strings.HasPrefix(b.String(), xml.Header) || !strings.HasSuffix(b.String(), "</testsuites>\n") {
		t.Errorf("the report is\n%s", b.String())
	}
}
