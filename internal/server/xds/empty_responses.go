package xds

// withholdsEmpty reports whether a proxy gets no empty response of a type, even if it asked: it
// waits for its secrets, or has refused all resources and waits for others.
func (s *session) withholdsEmpty(i int) bool { return i == sds || s.refusedAll(i) }

// refusedAll reports whether the proxy has refused everything it was ever sent of a
// type. An empty list would then let it start with nothing.
func (s *session) refusedAll(i int) bool {
	t := &s.types[i]
	return fullList(i) && t.quarantine != nil && t.acked == viewSet{}
}
