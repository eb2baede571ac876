package server

import "errors"

// logLevels returns the log level of each area, nil when the log has no areas.
func (s *Server) logLevels() map[string]string {
	if s.cfg.LogLevels == nil {
		return nil
	}
	return s.cfg.LogLevels.Current()
}

// setLogLevels sets the levels of areas.
func (s *Server) setLogLevels(text string) error {
	if s.cfg.LogLevels == nil {
		return errors.New("the levels of this log cannot be changed")
	}
	if err := s.cfg.LogLevels.Set(text); err != nil {
		return err
	}
	s.cfg.Log.Warn("log levels changed", "to", text) // a warning, so that it is seen at most levels
	return nil
}
