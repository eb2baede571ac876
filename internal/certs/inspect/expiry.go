package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/output"
)

// Ending is one thing that ends some day.
type Ending struct {
	Kind string `json:"kind"`
	Name string `json:"name"` // subject, issuer of a list, subject of a token
	// Until is nil for what never ends.
	Until    *time.Time `json:"until,omitzero"`
	DaysLeft *int       `json:"daysLeft,omitzero"`
	// State is ok, due or expired; unknown when the end could not be read.
	State string `json:"state"`
	// Places are all where it is, the first one first.
	Places      []string `json:"places"`
	Fingerprint string   `json:"sha256,omitzero"`
	Problem     string   `json:"problem,omitzero"`
}

// States of an Ending.
const (
	StateOK      = "ok"
	StateDue     = "due" // within the time that was asked for
	StateExpired = "expired"
	StateUnknown = "unknown"
)

// Expiry lists what ends, what ends first coming first; the same certificate
// in several places is listed once. What ends within the given time from now
// is due. What could not be read comes before all: it may have ended.
func Expiry(m *Contents, within time.Duration, now time.Time) []Ending {
	byKey := map[string]int{}
	endings := []Ending{}
	add := func(key, place string, e Ending) {
		if at, known := byKey[key]; known && key != "" {
			if !slices.Contains(endings[at].Places, place) {
				endings[at].Places = append(endings[at].Places, place)
			}
			return
		}
		byKey[key] = len(endings)
		e.Places = []string{place}
		endings = append(endings, e)
	}
	for _, s := range m.Sets {
		for _, f := range s.Files {
			if f.Unreadable != "" {
				add("", f.Place, Ending{Kind: KindUnreadable, State: StateUnknown, Problem: f.Unreadable})
			}
			for i, b := range f.Blocks {
				switch {
				case b.Fault == certs.FaultTrailing:
				case b.Fault != "" && !b.IsKey():
					add("", f.At(i), Ending{Kind: KindUnreadable, State: StateUnknown, Problem: b.Err.Error()})
				case b.Cert != nil:
					e := ending(KindCertificate, verify.Name(b.Cert), b.Cert.NotAfter, within, now)
					e.Fingerprint = certs.Fingerprint(b.Cert)
					add(e.Fingerprint, f.At(i), e)
				case b.CRL != nil:
					add("crl "+string(b.CRL.Raw), f.At(i), ending(KindCRL, b.CRL.Issuer.String(), b.CRL.NextUpdate, within, now))
				}
			}
		}
	}
	for _, t := range m.Tokens {
		e := ending(KindToken, t.Name, t.Expires, within, now)
		if t.Fault != "" {
			e = Ending{Kind: KindToken, Name: t.Name, State: StateUnknown, Problem: t.Fault}
		}
		add("", t.Place, e)
	}
	slices.SortStableFunc(endings, compare)
	return endings
}

func ending(kind, name string, until time.Time, within time.Duration, now time.Time) Ending {
	e := Ending{Kind: kind, Name: name, State: StateOK}
	if until.IsZero() {
		return e
	}
	var entry Item
	entry.until(until, now)
	e.Until, e.DaysLeft = entry.Until, entry.DaysLeft
	switch {
	case now.After(until):
		e.State = StateExpired
	case until.Sub(now) < within:
		e.State = StateDue
	}
	return e
}

// compare sorts by time left: unknown first, never last.
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

// Failed returns how many are due, expired or unknown.
func Failed(endings []Ending) int {
	n := 0
	for _, e := range endings {
		if e.State != StateOK {
			n++
		}
	}
	return n
}

// EndingTable lays endings out.
func EndingTable(endings []Ending) *output.Table {
	t := &output.Table{Header: []string{"DAYS", "UNTIL", "STATE", "KIND", "NAME", "PLACE"}, Gap: 3}
	for _, e := range endings {
		place := e.Places[0]
		if more := len(e.Places) - 1; more > 0 {
			place += fmt.Sprintf(" + %d more...", more)
		}
		t.Rows = append(t.Rows, []string{number(e.DaysLeft), e.until(), e.State, e.Kind, dash(e.title()), place})
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

// sentence tells why an ending is a failure.
func (e *Ending) sentence() string {
	switch e.State {
	case StateUnknown:
		return "its end is not known: " + e.Problem
	case StateExpired:
		return "expired at " + e.until()
	}
	return fmt.Sprintf("ends at %s, days left: %d", e.until(), *e.DaysLeft)
}

// WriteJUnit writes endings as a JUnit report: a test case each.
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

// WriteOpenMetrics writes when each ends, in seconds since 1970, as
// OpenMetrics text. What never ends is +Inf; what could not be read counts in
// a metric of its own.
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
			if !written[labels] { // two users of one name in a kubeconfig
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

// label writes the value of a label: characters that do not print are
// escaped first, so that a line stays a line and two texts two.
func label(s string) string {
	s = output.Escape(s)
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
