package xds

import "strings"

// maxNACKText is the number of bytes of an error text that are searched.
const maxNACKText = 64 << 10

// namesInNACK returns the resources that Envoy's error text names, as far as has reports
// true for them. Envoy names resources only in these texts:
//
//	Error adding/updating cluster(s) NAME: reason, NAME: reason
//	Error adding/updating listener(s) NAME: reason⏎NAME: reason
//	… in route NAME
//	Unexpected EDS cluster (expecting NAME): OTHER
//	goo.gle/debugproto⏎name: "NAME"⏎… (or cluster_name)
func namesInNACK(message string, has func(string) bool) []string {
	message = message[:min(len(message), maxNACKText)]
	var names []string
	add := func(name string) {
		if has(name) {
			names = append(names, name)
		}
	}
	for _, kind := range []string{"cluster(s) ", "listener(s) "} {
		_, list, ok := strings.Cut(message, "Error adding/updating "+kind)
		if !ok {
			continue
		}
		for line := range strings.SplitSeq(list, "\n") {
			for part := range strings.SplitSeq(line, ", ") {
				name, _, _ := strings.Cut(part, ": ")
				add(name)
			}
		}
	}
	if i := strings.LastIndex(message, " in route "); i >= 0 {
		add(strings.TrimRight(message[i+len(" in route "):], "\n."))
	}
	if _, rest, ok := strings.Cut(message, "Unexpected EDS cluster (expecting "); ok {
		name, _, _ := strings.Cut(rest, "): ")
		add(name)
	}
	if _, dump, ok := strings.Cut(message, "goo.gle/debug"); ok {
		for line := range strings.SplitSeq(dump, "\n") {
			for _, field := range []string{`name: "`, `cluster_name: "`} {
				if name, ok := strings.CutPrefix(line, field); ok {
					add(strings.TrimSuffix(name, `"`))
				}
			}
		}
	}
	return sortedUnique(names)
}
