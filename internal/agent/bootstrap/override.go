package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/xdswire/rules"
)

// merge merges a part of a bootstrap into b, and checks the result by the rules of Envoy's API.
func merge(b *bootstrapv3.Bootstrap, override []byte) error {
	if len(override) == 0 {
		return nil
	}
	data, err := yaml.YAMLToJSON(override)
	if err != nil {
		return fmt.Errorf("ISTIO_BOOTSTRAP_OVERRIDE: %w", err)
	}
	part := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(data, part); err != nil {
		return fmt.Errorf("ISTIO_BOOTSTRAP_OVERRIDE is no bootstrap of Envoy: %w", err)
	}
	proto.Merge(b, part)
	if v := rules.CheckAll(b); v != nil {
		return fmt.Errorf("ISTIO_BOOTSTRAP_OVERRIDE: with it, %s of the bootstrap %s", v.Path, v.Reason)
	}
	return nil
}
