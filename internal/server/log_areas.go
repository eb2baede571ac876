package server

import (
	"log/slog"

	"github.com/meshctl/meshctl/internal/logs"
)

// Areas of the log: the part that writes a line.
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

// LogAreas lists the areas of a control plane's log. Some lines belong to none.
func LogAreas() []string {
	return []string{
		logAuthn, logCA, logClusters, logCredentials, logHTTP, logIssuer, logKube, logRegistry, logSource, logWriters, logXDS,
	}
}

// log returns the log of an area.
func (c *Config) log(area string) *slog.Logger { return logs.For(c.Log, area) }
