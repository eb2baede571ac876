package proxyconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func (l LogLevels) text() string {
	out := []string{l.All}
	for _, logger := range slices.Sorted(maps.Keys(l.Of)) {
		out = append(out, logger+":"+l.Of[logger])
	}
	return strings.Join(out, ",")
}

func TestParseLogLevels(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"debug":                            "debug",
		"warn":                             "warning",
		"http:debug":                       ",http:debug",
		"router=trace,http:off,error":      "error,http:off,router:trace",
		"http:debug, router:debug , info":  "info,http:debug,router:debug",
		"istio-proxy::http:debug,ns::info": "info,http:debug",

		"":                    `unrecognized logging level: "" is none of trace, debug, info, warning, error, critical, off`,
		"debag":               `unrecognized logging level: "debag" is none of trace, debug, info, warning, error, critical, off, did you mean "debug"?`,
		"http:":               `unrecognized logging level: "" is none of trace, debug, info, warning, error, critical, off`,
		":debug":              `":debug" names no logger: want logger:level`,
		"http:debug,":         `unrecognized logging level: "" is none of trace, debug, info, warning, error, critical, off`,
		"info,debug":          "two levels for all loggers, info and debug",
		"http:info,http=warn": "two levels for logger http, info and warning",
	} {
		levels, err := ParseLogLevels(text)
		got := levels.text()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestReadStartLevels(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"command_line_options":{"log_level":"info","component_log_level":"misc:error,http:debug","unheard_of":1}}`: "info,http:debug,misc:error",
		`{"command_line_options":{"log_level":"warning"}}`:                                                           "warning",
		`{"unheard_of":"` + strings.Repeat("x", 1<<20) + `","command_line_options":{"log_level":"off"}}`:             "off", // who gives it bounds it
		`{}`:       `levels that Envoy was started with: unrecognized logging level: "" is none of trace, debug, info, warning, error, critical, off`,
		`<html/>`:  `the answer is no server info of Envoy: `,
		`{"state"`: `the answer is no server info of Envoy: `,
	} {
		levels, err := ReadStartLevels(strings.NewReader(text))
		got := levels.text()
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%.200s: %s, want %s", text, got, want)
		}
	}
}

// FuzzReadLoggers: levels that were read can be requested.
func FuzzReadLoggers(f *testing.F) {
	f.Add("active loggers:\n  admin: warning\n  http: debug\n")
	f.Add("active loggers:\n  a: b: off\n\x00: trace\n")
	f.Add("usage: /logging?level=<level> (change all levels)\n")
	f.Fuzz(func(t *testing.T, text string) {
		active, err := ReadLoggers(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(active) == 0 {
			t.Error("no loggers and no error")
		}
		for logger, level := range active {
			if _, err := logLevel(level); err != nil {
				t.Error(err)
			}
			if err := (LogLevels{Of: map[string]string{logger: "off"}}).Check(active); err != nil {
				t.Error(err)
			}
		}
		if err := (LogLevels{Of: map[string]string{"not\nthere": "off"}}).Check(active); err == nil {
			t.Error(fmt.Sprint("a name over two lines is a logger: ", active))
		}
	})
}
