package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/output"
)

// Ending is the end of a certificate, revocation list or token.
type Ending struct {
	Kind string `json:"kind"`
	Name string `json:"name"` // subject, issuer of a list, subject of a token
	// Until is nil if there is no end.
	Until    *time.Time `json:"until,omitzero"`
	DaysLeft *int       `json:"daysLeft,omitzero"`
	// State is ok, due, expired or, if the end could not be read, unknown.
	State string `json:"state"`
	// Places lists all places in the order of the inputs.
	Places      []string `json:"places"`
	Fingerprint string   `json:"sha256,omitzero"`
	Problem     string   `json:"problem,omitzero"`
}

// States of an Ending.
const (
	StateOK      = "ok"
	StateDue     = "due" // ends within the given time
	StateExpired = "expired"
	StateUnknown = "unknown"
)

// Expiry lists everything that ends, the earliest end first. It lists a
// certificate or revocation list once, with all its places. Items that end within
// the given time are due. Unreadable items come first, as they may have ended.
func Expiry(contents *Contents, within time.Duration, now time.Time) []Ending {
	byKey := map[string]int{}
	endings := []Ending{}
	for _, item := range List(contents, nil, now) {
		e := Ending{Kind: item.Kind, Name: item.Subject, Until: item.Until, DaysLeft: item.DaysLeft, Problem: item.Problem}
		key := ""
		switch item.Kind {
		case KindKey, KindRequest:
			continue
		case KindCertificate:
			e.Name, e.Fingerprint = item.name, item.SHA256
			key = item.SHA256
		case KindCRL:
			e.Name = item.Issuer
			key = "crl " + string(item.crl.Raw)
		}
		if at, known := byKey[key]; known && key != "" {
			if !slices.Contains(endings[at].Places, item.Place) {
				endings[at].Places = append(endings[at].Places, item.Place)
			}
			continue
		}
		byKey[key] = len(endings)
		e.State, e.Places = stateOf(item, within, now), []string{item.Place}
		endings = append(endings, e)
	}
	slices.SortStableFunc(endings, compare)
	return endings
}

func stateOf(item Item, within time.Duration, now time.Time) string {
	switch {
	case item.Problem != "":
		return StateUnknown
	case item.Until == nil:
		return StateOK
	case now.After(*item.Until):
		return StateExpired
	case item.Until.Sub(now) < within:
		return StateDue
	}
	return StateOK
}

// compare sorts by time left: unknown ends first, items without an end last.
func compare(a, b Ending) int {
	rank := func(e Ending) int {
		switch {
		case e.State == StateUnknown:
			return 0
		case e.Until != nil:
			return 1
		}
		return 2
	}
	if c := cmp.Compare(rank(a), rank(b)); c != 0 || rank(a) != 1 {
		return c
	}
	return a.Until.Compare(*b.Until)
}

// Failed returns the number of endings that are due, expired or unknown.
func Failed(endings []Ending) int {
	n := 0
	for _, e := range endings {
		if e.State != StateOK {
			n++
		}
	}
	return n
}

// EndingTable returns the endings as a table.
func EndingTable(endings []Ending) *output.Table {
	t := &output.Table{Header: []string{"DAYS", "UNTIL", "STATE", "KIND", "NAME", "PLACE"}, Gap: 3}
	for _, e := range endings {
		place := e.Places[0]
		if more := len(e.Places) - 1; more > 0 {
			place += fmt.Sprintf(" + %d more...", more)
		}
		t.Rows = append(t.Rows, []string{number(e.DaysLeft), e.until(), e.State, e.Kind, cmp.Or(e.title(), "-"), place})
	}
	return t
}

func (e *Ending) until() string {
	switch {
	case e.Until != nil:
		return e.Until.Format(time.RFC3339)
	case e.State == StateUnknown:
		return "unknown"
	}
	return "never"
}

func (e *Ending) title() string {
	if e.Problem == "" {
		return e.Name
	}
	return strings.TrimSpace(fmt.Sprintf("%s (%s)", e.Name, e.Problem))
}

// sentence states why an ending is a failure.
func (e *Ending) sentence() string {
	switch e.State {
	case StateUnknown:
		return "its end is not known: " + e.Problem
	case StateExpired:
		return "expired at " + e.until()
	}
	return fmt.Sprintf("ends at %s, days left: %d", e.until(), *e.DaysLeft)
}

// WriteJUnit writes a JUnit report with one test case for each ending.
func WriteJUnit(w io.Writer, endings []Ending) error {
	cases := make([]output.TestCase, 0, len(endings))
	for _, e := range endings {
		c := output.TestCase{Class: e.Kind, Name: strings.TrimSpace(e.Name + " " + e.Places[0])}
		if e.State != StateOK {
			c.Failure = &output.TestFailure{Type: e.State, Message: e.sentence(), Text: strings.Join(e.Places, ", ")}
		}
		cases = append(cases, c)
	}
	return output.WriteJUnit(w, "certs expiry", cases)
}

// WriteOpenMetrics writes the time of each ending, in seconds since 1970, as
// OpenMetrics text. Items without an end are +Inf; a separate metric counts
// unreadable items.
func WriteOpenMetrics(w io.Writer, endings []Ending) error {
	var b strings.Builder
	const name = "meshctl_certs_expiry_timestamp_seconds"
	fmt.Fprintf(&b, "# TYPE %s gauge\n# UNIT %[1]s seconds\n# HELP %[1]s When a certificate, revocation list or token ends.\n", name)
	unknown, written := 0, map[string]bool{}
	for _, e := range endings {
		if e.State == StateUnknown {
			unknown++
			continue
		}
		value := "+Inf"
		if e.Until != nil {
			value = fmt.Sprintf("%d", e.Until.Unix())
		}
		for _, place := range e.Places {
			labels := fmt.Sprintf("kind=%q,name=%s,place=%s", e.Kind, label(e.Name), label(place))
			if !written[labels] { // a kubeconfig may have two users of one name
				written[labels] = true
				fmt.Fprintf(&b, "%s{%s} %s\n", name, labels, value)
			}
		}
	}
	const failed = "meshctl_certs_unreadable"
	fmt.Fprintf(&b, "# TYPE %s gauge\n# HELP %[1]s Things whose end could not be read.\n%[1]s %d\n# EOF\n", failed, unknown)
	_, err := io.WriteString(w, b.String())
	return err
}

// label quotes the value of a label. It first escapes unprintable characters, so
// that a label stays on one line and different values stay different.
func label(s string) string {
	s = output.Escape(s)
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
