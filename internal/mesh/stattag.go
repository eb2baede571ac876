package mesh

import "regexp"

var statTag = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// IsStatTag reports whether s may be the name of a part of statistic names that becomes a label.
func IsStatTag(s string) bool { return statTag.MatchString(s) }
