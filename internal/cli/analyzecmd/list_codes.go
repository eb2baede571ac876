package analyzecmd

import (
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
)

// codeOfFindings is a code in the output for programs.
type codeOfFindings struct {
	Code          codes.Code  `json:"code"`
	Name          string      `json:"name"`
	Level         codes.Level `json:"level"`
	Cause         string      `json:"cause"`
	Fix           string      `json:"fix"`
	Documentation string      `json:"documentation"`
}

// listCodes writes the codes of all findings.
func listCodes(env *cli.Env, format output.Format) error {
	t := &output.Table{Header: []string{"CODE", "LEVEL", "NAME"}, Gap: 3, Name: "CODE"}
	if format.Wide() {
		t.Header = append(t.Header, "DOCUMENTATION")
	}
	var all []codeOfFindings
	for _, k := range codes.Kinds() {
		all = append(all, codeOfFindings{k.Code, k.Name, k.Level, k.Cause, k.Fix, k.Code.Documentation()})
		row := []string{string(k.Code), string(k.Level), k.Name}
		if format.Wide() {
			row = append(row, k.Code.Documentation())
		}
		t.Rows = append(t.Rows, row)
	}
	return cli.WriteResult(env, format, all, t)
}
