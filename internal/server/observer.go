package server

import "github.com/meshctl/meshctl/internal/server/xds/history"

// observer is nil without a Tracer, which an interface with a nil Tracer in it
// is not.
func (c *Config) observer() history.Observer {
	if c.Tracer == nil {
		return nil
	}
	return c.Tracer
}
