package server

import (
	"strings"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
)

// gatewaysPage makes /debug/gateways.
func (s *Server) gatewaysPage() []facts.Gateway {
	list := append([]facts.Gateway{}, s.registry.Gateways()...)
	due := s.hosts.Due()
	for i := range list {
		list[i].NextLookup = due[strings.ToLower(list[i].Address)]
	}
	return list
}
