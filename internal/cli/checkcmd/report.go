package checkcmd

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
)

// report writes the findings, and returns the result of the command. Findings at least as
// severe as failing are a failure.
func report(env *cli.Env, format output.Format, found []analyze.Finding, failing analyze.Level) error {
	reports := analyze.Reports(found)
	t := &output.Table{Header: []string{"LEVEL", "CODE", "OBJECT", "PLACE", "MESSAGE"}, Gap: 3, Name: "OBJECT"}
	fixes := slices.ContainsFunc(reports, func(r analyze.Report) bool { return r.Fix != "" })
	if fixes {
		t.Header = append(t.Header, "FIX")
	}
	if format.Wide() {
		t.Header = append(t.Header, "NAME", "DOCUMENTATION")
	}
	count := map[analyze.Level]int{}
	failed := false
	for i := range reports {
		s := &reports[i]
		count[s.Level]++
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
	summary := strings.Join([]string{
		output.Plural(count[analyze.Error], "error"), output.Plural(count[analyze.Warning], "warning"), output.Plural(count[analyze.Info], "remark"),
	}, ", ")
	switch {
	case failed:
		return cli.Findingsf("%s", summary)
	case len(found) > 0:
		env.Notef("%s", summary)
	default:
		env.Notef("nothing found")
	}
	return nil
}
