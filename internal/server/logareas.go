package server

import (
	"errors"
	"log/slog"

	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/server/debug"
)

// Areas of the log: who writes a line.
const (
	logAuthn       = "authn"
	logCA          = "ca"
	logClusters    = "clusters"
	logCredentials = "credentials"
	logHTTP        = "http"
	logIssuer      = "issuer"
	logKube        = "kube"
	logRegistry    = "registry"
	logSource      = "source"
	logWriters     = "writers"
	logXDS         = "xds"
)

// LogAreas lists the areas of a control plane's log. All other lines are of no
// area.
func LogAreas() []string {
	return []string{
		logAuthn, logCA, logClusters, logCredentials, logHTTP, logIssuer, logKube, logRegistry, logSource, logWriters, logXDS,
	}
}

// log is the log of an area.
func (c *Config) log(area string) *slog.Logger { return logs.For(c.Log, area) }

// logLevels are the levels of the areas, nil when the log has none.
func (s *Server) logLevels() map[string]string {
	if s.cfg.LogLevels == nil {
		return nil
	}
	return s.cfg.LogLevels.Current()
}

// changes are the status pages that can be set to something.
func (s *Server) changes() map[string]debug.Change {
	return map[string]debug.Change{"log-levels": func(text string) error {
		if s.cfg.LogLevels == nil {
			return errors.New("the levels of this log cannot be changed")
		}
		if err := s.cfg.LogLevels.Set(text); err != nil {
			return err
		}
		s.cfg.Log.Warn("log levels changed", "to", text) // a warning, so that it is seen at most levels
		return nil
	}}
}
