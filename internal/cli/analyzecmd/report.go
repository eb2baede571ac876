package analyzecmd

import (
	"slices"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
)

// report writes the findings, and returns the result of the command. Findings at least as
// severe as failing are a failure. looked says what was read, unread what could not be read.
func report(env *cli.Env, format output.Format, found []analyze.Finding, failing codes.Level, looked string, unread []error) error {
	reports := analyze.Reports(found)
	t := &output.Table{Header: []string{"LEVEL", "CODE", "OBJECT", "PLACE", "MESSAGE"}, Gap: 3, Name: "OBJECT"}
	fixes := slices.ContainsFunc(reports, func(r analyze.Report) bool { return r.Fix != "" })
	if fixes {
		t.Header = append(t.Header, "FIX")
	}
	if format.Wide() {
		t.Header = append(t.Header, "NAME", "DOCUMENTATION")
	}
	failed := false
	for i := range reports {
		s := &reports[i]
		failed = failed || s.Level.AtLeast(failing)
		place := s.Reference
		if place == "" && s.Cluster != "" {
			place = "cluster " + string(s.Cluster)
		}
		row := []string{string(s.Level), string(s.Code), cli.OrDash(s.Origin), cli.OrDash(place), s.Text()}
		if fixes {
			row = append(row, cli.OrDash(s.Fix))
		}
		if format.Wide() {
			row = append(row, s.Name, s.Documentation)
		}
		t.Rows = append(t.Rows, row)
	}
	if len(found) > 0 || !format.ForPeople() {
		if err := cli.WriteResult(env, format, reports, t); err != nil {
			return err
		}
	}
	switch {
	case failed:
		env.NotRead(unread...)
		return cli.Findingsf("%s", count(reports))
	case len(found) > 0:
		env.Notef("%s", count(reports))
	default:
		env.Notef("nothing found %s", looked)
	}
	return cli.Incomplete(unread...)
}
