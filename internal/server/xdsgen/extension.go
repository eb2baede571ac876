package xdsgen

import "github.com/meshctl/meshctl/internal/server/snapshot"

// extension is the configuration of a filter.
type extension struct {
	name string
	body string       // an encoded envoy.config.core.v3.TypedExtensionConfig
	of   snapshot.Key // the object that configures it; zero if several do
}
