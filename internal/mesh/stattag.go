package mesh

import "regexp"

var statTag = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// IsStatTag reports whether s may be the name of a part of statistic names that becomes a label.
func IsStatTag(s string) bool { return len(s) <= 128 && statTag.MatchString(s) }
