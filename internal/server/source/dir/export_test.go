package dir

// LimitFiles lowers MaxFiles for a test.
func (s *Source) LimitFiles(n int) { s.maxFiles = n }
