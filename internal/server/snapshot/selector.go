package snapshot

import (
	"slices"
	"strings"
)

// LabelSelector is a set of labels in a comparable form.
type LabelSelector string

// SelectorOf returns the comparable form of labels.
func SelectorOf(labels map[string]string) LabelSelector {
	parts := make([]string, 0, len(labels))
	for k, v := range labels {
		parts = append(parts, k+"="+v)
	}
	slices.Sort(parts)
	return LabelSelector(strings.Join(parts, ","))
}

// Selects reports whether every label of the selector is among the labels.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
