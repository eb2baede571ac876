package analyze

import (
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Report is a finding in istioctl's form, with more fields.
type Report struct {
	Code    codes.Code     `json:"code"`
	Name    string         `json:"name"`
	Level   codes.Level    `json:"level"`
	Origin  string         `json:"origin,omitzero"` // kind and namespace/name
	Cluster mesh.ClusterID `json:"cluster,omitzero"`
	// Reference is the file and the line.
	Reference string `json:"reference,omitzero"`
	Field     string `json:"field,omitzero"`
	Message   string `json:"message"`
	// Fix is a command that mends the fault.
	Fix           string `json:"fix,omitzero"`
	Documentation string `json:"documentationUrl"`
}

// Reports returns the findings as reports.
func Reports(findings []Finding) []Report {
	out := make([]Report, len(findings))
	for i := range findings {
		f := &findings[i]
		k := codes.KindOf(f.Code)
		out[i] = Report{
			Code: f.Code, Name: k.Name, Level: f.Severity(), Origin: fields.ObjectName(f.Object), Cluster: f.Object.Cluster,
			Field: f.Field, Message: f.Message, Fix: f.Fix, Documentation: f.Code.Documentation(),
		}
		switch {
		case f.Place.File != "" && f.Place.Line > 0:
			out[i].Reference = f.Place.String()
		case f.Place.File != "":
			out[i].Reference = f.Place.File
		}
	}
	return out
}

// Text returns the message with the field.
func (r *Report) Text() string {
	if r.Field == "" {
		return r.Message
	}
	return r.Field + ": " + r.Message
}

func (r Report) String() string {
	text := string(r.Code) + " " + r.Name + ": "
	if r.Origin != "" {
		text += r.Origin + ": "
	}
	return text + r.Text()
}
