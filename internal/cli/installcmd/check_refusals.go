package installcmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// maxListed bounds the names in a finding.
const maxListed = 3

// refusal is a resource that proxies refuse, or several with the same cause.
type refusal struct {
	objects, why       string
	resources, proxies []string
}

// refusals returns a finding for each cause by which proxies refuse resources.
func refusals(answers []cli.Answer[xds.NACKs], flags string) []apply.Finding {
	var all []*refusal
	for _, a := range answers {
		for i := range a.Value.Refused {
			q := &a.Value.Refused[i]
			objects, why := strings.Join(q.Objects[:min(len(q.Objects), maxListed)], ", "), reasonOf(q.Error, q.Resource)
			at := slices.IndexFunc(all, func(r *refusal) bool { return r.objects == objects && r.why == why })
			if at < 0 {
				at, all = len(all), append(all, &refusal{objects: objects, why: why})
			}
			r := all[at]
			r.resources = addName(r.resources, q.Type+" "+q.Resource)
			for _, stream := range q.Streams {
				r.proxies = addName(r.proxies, stream[:max(strings.LastIndexByte(stream, '-'), 0)])
			}
		}
	}
	var out []apply.Finding
	for _, r := range all {
		f := apply.Finding{
			Level: apply.Error, Object: r.objects, Hint: withFlags("meshctl xds nacks", flags),
			Fault: fmt.Sprintf("%s by %s: %s", refused(r.resources), output.Plural(len(r.proxies), "proxy")+" ("+few(r.proxies)+")", r.why),
		}
		if r.objects == "" {
			f.Object = "proxy " + few(r.proxies)
		} else if kind, name, ok := strings.Cut(strings.Split(r.objects, ", ")[0], " "); ok {
			namespace, name, _ := strings.Cut(name, "/")
			f.Hint = fmt.Sprintf("correct it: %s -n %s edit %s %s", withFlags("kubectl", flags), namespace, strings.ToLower(kind), name)
		}
		out = append(out, f)
	}
	return out
}

// refused states which resources are refused.
func refused(resources []string) string {
	if len(resources) == 1 {
		return resources[0] + " is refused"
	}
	return few(resources) + " are refused"
}

func addName(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// few lists the first names.
func few(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// reasonOf returns the part of Envoy's error text that is about a resource, in one line. Envoy writes
// the reasons of several listeners below each other: Error adding/updating listener(s) NAME: reason.
func reasonOf(text, resource string) string {
	_, list, ok := strings.Cut(text, "(s) ")
	if !ok || !strings.HasPrefix(text, "Error adding/updating ") {
		return proxystatus.OneLine(text)
	}
	var lines []string
	for line := range strings.SplitSeq(list, "\n") {
		name, rest, named := strings.Cut(line, ": ")
		switch {
		case named && name == resource:
			lines = append(lines, rest)
		case len(lines) > 0 && named && !strings.Contains(name, " "):
			return strings.Join(lines, "; ") // of another listener
		case len(lines) > 0:
			lines = append(lines, line)
		}
	}
	return proxystatus.OneLine(cmp.Or(strings.Join(lines, "\n"), text))
}

// withoutRefusals returns a report without the types whose refused resources are known.
func withoutRefusals(r *proxystatus.Report) *proxystatus.Report {
	out := *r
	out.Proxies = slices.Clone(r.Proxies)
	for i := range out.Proxies {
		out.Proxies[i].Types = slices.DeleteFunc(slices.Clone(out.Proxies[i].Types), func(t proxystatus.Type) bool {
			return t.State == proxystatus.Error && len(t.Refused) > 0
		})
	}
	return &out
}
