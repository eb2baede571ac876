package mesh

import (
	"cmp"
	"strings"
)

// Locality is where an endpoint or a proxy runs. Empty parts are unknown.
type Locality struct{ Region, Zone, Subzone string }

// String renders region/zone/subzone without trailing empty parts.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}

// ParseLocality parses region/zone/subzone. Missing parts are empty.
func ParseLocality(s string) Locality {
	p := append(strings.SplitN(s, "/", 3), "", "", "")
	return Locality{Region: p[0], Zone: p[1], Subzone: p[2]}
}

// LocalityOfLabels returns the locality in the labels of a workload, where dots separate the parts.
func LocalityOfLabels(labels map[string]string) (l Locality, ok bool) {
	text := cmp.Or(labels[LabelLocality], labels[LabelOldLocality])
	return ParseLocality(strings.ReplaceAll(text, ".", "/")), text != ""
}

// Compare orders localities by region, zone, subzone.
func (l Locality) Compare(o Locality) int {
	if c := strings.Compare(l.Region, o.Region); c != 0 {
		return c
	}
	if c := strings.Compare(l.Zone, o.Zone); c != 0 {
		return c
	}
	return strings.Compare(l.Subzone, o.Subzone)
}
