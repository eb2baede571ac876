package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// expressions lists the placeholders in generated objects, each with its expression in the
// template. Of two that begin at one place the first counts.
var expressions = []struct{ placeholder, expression string }{
	{"-value-webhooks", `(include "meshctl.webhookSuffix" .)`},
	{"-value-revision", `(include "meshctl.suffix" .)`},
	{"value-revision", `(include "meshctl.revision" .)`},
	{"value-named", `$tag`},
	{"value-namespace", `.Release.Namespace`},
	{"value-name", `.Release.Name`},
	{"value-istio", `(trimPrefix "istio-" .Release.Name)`},
	{"value-system", `.Values.istioNamespace`},
	{"value-cluster", `.Values.global.multiCluster.clusterName`},
	{"value-gateway-network", `.Values.networkGateway`},
	{"value-network", `.Values.global.network`},
	{"value-mesh", `.Values.global.meshID`},
	{"value-hub", `.Values.global.hub`},
	{"value-tag", `.Values.global.tag`},
	{"value-policy", `.Values.global.imagePullPolicy`},
	{"value-type", `.Values.service.type`},
}

// optional lists texts whose lines are left out unless a condition holds.
var optional = []struct{ part, condition string }{
	{"--serving-name=", `or .Values.revision (ne .Release.Namespace "istio-system")`},
	{"rootNamespace: ", `ne .Release.Namespace "istio-system"`},
	{"discoveryAddress: ", `ne .Release.Namespace "istio-system"`},
	{"value-mesh", `.Values.global.meshID`},
	{"value-network", `.Values.global.network`},
	{"value-gateway-network", `.Values.networkGateway`},
}

// scalar matches a line of YAML with a placeholder in its value.
var scalar = regexp.MustCompile(`^(\s*(?:- )*(?:[\w./-]+: )?)['"]?(.*value-.*?)['"]?$`)

// template replaces the placeholders of single values in YAML.
func template(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		end := ""
		for _, o := range optional {
			if strings.Contains(line, o.part) {
				fmt.Fprintf(&out, "{{- if %s }}\n", o.condition)
				end = "{{- end }}\n"
				break
			}
		}
		if m := scalar.FindStringSubmatch(line); m != nil {
			line = m[1] + "{{ " + expression(m[2]) + " | quote }}"
		}
		out.WriteString(line + "\n" + end)
	}
	return out.String()
}

// expression returns the expression for a text with placeholders.
func expression(text string) string {
	var args []string
	format := strings.ReplaceAll(text, "%", "%%")
	for {
		first, at := -1, len(format)
		for i, e := range expressions {
			if j := strings.Index(format, e.placeholder); j >= 0 && j < at {
				first, at = i, j
			}
		}
		if first < 0 {
			break
		}
		e := expressions[first]
		format = format[:at] + "%s" + format[at+len(e.placeholder):]
		args = append(args, e.expression)
	}
	if format == "%s" {
		return args[0]
	}
	return fmt.Sprintf("printf %q %s", format, strings.Join(args, " "))
}

// block replaces a line and the lines below it that are indented more, or are items of its
// list. change gets the indentation and these lines.
func block(text, first string, change func(indent, below string) string) string {
	lines := strings.SplitAfter(text, "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) == first })
	if at < 0 {
		panic("no line " + first + " in " + text)
	}
	indent := lines[at][:len(lines[at])-len(strings.TrimLeft(lines[at], " "))]
	within := func(l string) bool { return strings.HasPrefix(l, indent+" ") || strings.HasPrefix(l, indent+"- ") }
	end := at + 1
	for depth := 0; end < len(lines); end++ {
		l := lines[end]
		switch {
		case l == "{{- end }}\n":
			depth--
		case strings.HasPrefix(l, "{{- if "), strings.HasPrefix(l, "{{- range "), strings.HasPrefix(l, "{{- with "):
			if depth == 0 && !within(lines[end+1]) {
				depth = -1 // a condition of the next field
				break
			}
			depth++
		}
		if depth < 0 || depth == 0 && l != "{{- end }}\n" && !within(l) {
			break
		}
	}
	return strings.Join(lines[:at], "") + change(indent, strings.Join(lines[at+1:end], "")) + strings.Join(lines[end:], "")
}

// value replaces a block by a value that may be empty.
func value(text, field, expression string) string {
	return block(text, field+":", func(indent, _ string) string {
		return fmt.Sprintf("{{- with %s }}\n%s%s:\n{{- toYaml . | nindent %d }}\n{{- end }}\n", expression, indent, field, len(indent)+2)
	})
}

// given replaces the content of a block by a value, unless this is empty.
func given(text, field, expression string, otherwise func(below string) string) string {
	return block(text, field+":", func(indent, below string) string {
		return fmt.Sprintf("%s%s:\n{{- if %s }}\n{{- toYaml %s | nindent %d }}\n{{- else }}\n%s{{- end }}\n",
			indent, field, expression, expression, len(indent)+2, otherwise(below))
	})
}

// when puts a text under a condition.
func when(condition, text string) string {
	return "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
}
