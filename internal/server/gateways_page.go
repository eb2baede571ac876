package server

import (
	"strings"

	"github.com/meshctl/meshctl/internal/server/registry"
)

// gatewaysPage makes /debug/gateways.
func (s *Server) gatewaysPage() []registry.Gateway {
	list := append([]registry.Gateway{}, s.registry.Gateways()...)
	due := s.hosts.Due()
	for i := range list {
		list[i].NextLookup = due[strings.ToLower(list[i].Address)]
	}
	return list
}
