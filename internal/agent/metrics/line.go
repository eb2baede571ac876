package metrics

import (
	"bytes"
	"slices"
	"strconv"
)

// kindsOfMetrics are the types in comments, of the text format and of OpenMetrics.
var kindsOfMetrics = []string{"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"}

// isMetric reports whether a line of an application may be merged. One line that is no metric, such
// as a line of an HTML page, would make Prometheus refuse the metrics of all sources.
func isMetric(line []byte) bool {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return true
	}
	if line[0] == '#' {
		return isComment(line)
	}
	name := wordLength(line)
	rest := skipSpace(line[name:])
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		if rest, ok = skipLabels(rest[1:], name == 0); !ok {
			return false
		}
	} else if name == 0 || len(rest) == len(line)-name {
		return false
	}
	sample, _, _ := bytes.Cut(rest, []byte("#")) // an exemplar may follow
	numbers := bytes.Fields(sample)
	return (len(numbers) == 1 || len(numbers) == 2) && !slices.ContainsFunc(numbers, func(n []byte) bool {
		_, err := strconv.ParseFloat(string(n), 64)
		return err != nil
	})
}

// isComment reports whether a comment is valid. Only those with a keyword can be invalid.
func isComment(line []byte) bool {
	fields := bytes.Fields(line)
	if len(fields) < 2 || string(fields[0]) != "#" {
		return true
	}
	switch string(fields[1]) {
	case "TYPE":
		return len(fields) == 4 && isName(fields[2]) && slices.Contains(kindsOfMetrics, string(fields[3]))
	case "HELP":
		return len(fields) > 2 && isName(fields[2])
	}
	return true
}

// isName reports whether a word is the name of a metric, which quotes may surround.
func isName(word []byte) bool {
	if word[0] == '"' {
		return true
	}
	return wordLength(word) == len(word)
}

// wordLength returns the length of the name at the beginning.
func wordLength(text []byte) int {
	for i, c := range text {
		if c != '_' && c != ':' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(text)
}

func skipSpace(text []byte) []byte { return bytes.TrimLeft(text, " \t") }

// skipLabels returns what follows labels and their closing brace. A name in quotes may be the name of
// the metric, which must be there if named is set.
func skipLabels(text []byte, named bool) (rest []byte, ok bool) {
	for {
		text = skipSpace(text)
		if len(text) > 0 && text[0] == '}' {
			return text[1:], !named
		}
		n, quoted := wordLength(text), false
		if n == 0 {
			if n = quotedLength(text); n == 0 {
				return nil, false
			}
			quoted = true
		}
		text = skipSpace(text[n:])
		if len(text) > 0 && text[0] == '=' {
			text = skipSpace(text[1:])
			if n = quotedLength(text); n == 0 {
				return nil, false
			}
			text = skipSpace(text[n:])
		} else if named = named && !quoted; !quoted {
			return nil, false
		}
		switch {
		case len(text) == 0:
			return nil, false
		case text[0] == ',':
			text = text[1:]
		case text[0] != '}':
			return nil, false
		}
	}
}

// quotedLength returns the length of the string in quotes at the beginning, 0 for none.
func quotedLength(text []byte) int {
	if len(text) == 0 || text[0] != '"' {
		return 0
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}
