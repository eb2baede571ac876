package inspect

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/output"
)

// ItemTable returns a table with a row for each item. wide shortens nothing and
// adds more columns, such as the place.
func ItemTable(items []Item, wide bool) *output.Table {
	t := &output.Table{
		Header: []string{"SUBJECT", "SPIFFE IDS", "ISSUER", "SERIAL", "ALGORITHM", "FROM", "UNTIL", "DAYS", "SHA-256"},
		Gap:    3,
	}
	if wide {
		t.Header = append(t.Header, "NAMES", "CA", "PLACE")
	}
	for _, e := range items {
		row := []string{
			e.title(), list(e.SPIFFEIDs, wide), cmp.Or(e.Issuer, "-"), cell(e.Serial, 12, wide), cmp.Or(e.Algorithm, "-"),
			date(e.From, wide), date(e.Until, wide), number(e.DaysLeft), cell(e.SHA256, 23, wide),
		}
		if wide {
			row = append(row, list(e.Names, wide), e.rights(), e.Place)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// title returns the subject, or a description of other items than certificates.
func (e *Item) title() string {
	switch {
	case e.Problem != "":
		return fmt.Sprintf("(%s: %s)", e.Kind, e.Problem)
	case e.Kind == KindCertificate && e.Subject == "" && len(e.SPIFFEIDs) == 0:
		return list(e.Names, false)
	case e.Kind == KindCertificate:
		return cmp.Or(e.Subject, "-")
	case e.Kind == KindKey && e.Subject == "":
		return "(private key of no certificate here)"
	case e.Subject == "":
		return "(" + e.Kind + ")"
	}
	return fmt.Sprintf("(%s of %s)", e.Kind, e.Subject)
}

func (e *Item) rights() string {
	switch {
	case e.Kind != KindCertificate:
		return "-"
	case !e.CA:
		return "no"
	case e.PathLen != nil:
		return fmt.Sprintf("yes, path length %d", *e.PathLen)
	}
	return "yes"
}

// shown is the number of list elements that a narrow table shows.
const shown = 2

func list(items []string, wide bool) string {
	if !wide && len(items) > shown {
		return fmt.Sprintf("%s + %d more...", strings.Join(items[:shown], ", "), len(items)-shown)
	}
	return cmp.Or(strings.Join(items, ", "), "-")
}

// cell returns the text of a table cell. A narrow table shows its first n characters.
func cell(s string, n int, wide bool) string {
	if !wide && len(s) > n {
		return s[:n] + "..."
	}
	return cmp.Or(s, "-")
}

func date(t *time.Time, wide bool) string {
	switch {
	case t == nil:
		return "-"
	case wide:
		return t.Format(time.RFC3339)
	}
	return t.Format(time.DateOnly)
}

func number(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

// WriteText writes all fields of each item as a block of lines.
func WriteText(w io.Writer, items []Item) error {
	out := bufio.NewWriter(w)
	for i, e := range items {
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(out, "%s\n", output.Escape(e.Place))
		line := func(name string, values ...string) {
			for _, value := range values {
				if value != "" {
					fmt.Fprintf(out, "  %-20s %s\n", name, output.Escape(value))
				}
			}
		}
		filled := func(name, value string) {
			if value != "-" {
				line(name, value)
			}
		}
		line("what", e.Kind)
		line("problem", e.Problem)
		if e.Kind == KindKey {
			line("belongs to", e.Subject)
		} else {
			line("subject", e.Subject)
		}
		line("issuer", e.Issuer)
		line("serial", e.Serial)
		filled("valid from", date(e.From, true))
		filled("valid until", date(e.Until, true))
		filled("days left", number(e.DaysLeft))
		line("key", e.Algorithm)
		line("signed with", e.Signature)
		line("SPIFFE id", e.SPIFFEIDs...)
		line("name", e.Names...)
		line("cluster", e.Cluster)
		filled("may sign (CA)", e.rights())
		line("key usage", strings.Join(e.KeyUsages, ", "))
		line("extended key usage", strings.Join(e.ExtUsages, ", "))
		line("permits below it", strings.Join(e.Permitted, ", "))
		line("excludes below it", strings.Join(e.Excluded, ", "))
		line("key id", e.KeyID)
		line("signer's key id", e.SignerID)
		filled("revoked", number(e.Revoked))
		line("SHA-256", e.SHA256)
		line("chain", e.Chain)
	}
	return out.Flush()
}
