package output

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

// TestNothingSteersATerminal: text from other programs is escaped in every format of
// results and logs.
func TestNothingSteersATerminal(t *testing.T) {
	const evil = "x\nNAME  forged\x1b[2J\u202e\u2066\x07\u009b31m"
	forms := map[string]string{}
	var table, asJSON, asYAML, log strings.Builder
	if err := (&Table{Header: []string{"NAME", "OF"}, Rows: [][]string{{evil, "a"}}}).Write(&table); err != nil {
		t.Fatal(err)
	}
	for format, to := range map[Format]*strings.Builder{FormatJSON: &asJSON, FormatYAML: &asYAML} {
		if err := Write(to, format, map[string]string{"name": evil}); err != nil {
			t.Fatal(err)
		}
	}
	slog.New(slog.NewJSONHandler(JSONLines(&log), nil)).Info(evil, "proxy", evil)
	var talk strings.Builder
	if n, err := Text(&talk).Write([]byte("Error:\t" + strings.ReplaceAll(evil, "\n", " ") + "\x9b\nmore\n")); n != len(evil)+14 || err != nil {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	if want := "Error:\tx NAME  forged\\x1b[2J\\u202e\\u2066\\a\\u009b31m\\x9b\nmore\n"; talk.String() != want {
		t.Errorf("talk %q, want %q", talk.String(), want)
	}
	forms["table"], forms["JSON"], forms["YAML"], forms["log"] = table.String(), asJSON.String(), asYAML.String(), log.String()
	for what, text := range forms {
		if i := strings.IndexFunc(text, mustEscape); i >= 0 {
			t.Errorf("%s: byte %d does not print: %q", what, i, text)
		}
		if strings.Contains(text, "\nNAME  forged") || !strings.Contains(text, "forged") {
			t.Errorf("%s: %q", what, text)
		}
	}
	var line struct{ Msg, Proxy string }
	if err := json.Unmarshal([]byte(log.String()), &line); err != nil || line.Msg != evil || line.Proxy != evil {
		t.Errorf("the log says something else: %+v, %v", line, err)
	}
}
