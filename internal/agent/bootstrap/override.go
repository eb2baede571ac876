package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/internal/xdswire/rules"
)

// override merges a part of a bootstrap, YAML or JSON, into b.
func override(b *bootstrapv3.Bootstrap, override []byte) error {
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
	return merge(b, part, "ISTIO_BOOTSTRAP_OVERRIDE")
}

// patch merges the encoded patches of the control plane into b.
func patch(b *bootstrapv3.Bootstrap, patch []byte) error {
	if len(patch) == 0 {
		return nil
	}
	part := &bootstrapv3.Bootstrap{}
	if err := proto.Unmarshal(patch, part); err != nil {
		return fmt.Errorf("patches of the bootstrap from the control plane: %w", err)
	}
	if path, err := xdswire.CheckBootstrapPatch(part); err != nil {
		return fmt.Errorf("patches of the bootstrap from the control plane: %s %w", path, err)
	}
	return merge(b, part, "patches of the bootstrap from the control plane")
}

// merge merges a part of a bootstrap into b, and checks the result by the rules of Envoy's API.
func merge(b, part *bootstrapv3.Bootstrap, source string) error {
	proto.Merge(b, part)
	if v := rules.CheckAll(b); v != nil {
		return fmt.Errorf("%s: with it, %s of the bootstrap %s", source, v.Path, v.Reason)
	}
	return nil
}
