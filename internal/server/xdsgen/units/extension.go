package units

import "github.com/meshctl/meshctl/internal/server/snapshot"

// Extension is the configuration of a filter.
type Extension struct {
	Name string
	Body string       // an encoded envoy.config.core.v3.TypedExtensionConfig
	Of   snapshot.Key // the object that configures it; zero if several do
}
