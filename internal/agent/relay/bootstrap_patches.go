package relay

import (
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// BootstrapPatch handles BDS. The function receives a part of a bootstrap, an encoded Bootstrap
// that is empty when there are no patches, at each change.
type BootstrapPatch func(patch []byte) error

// Handle implements Handler.
func (f BootstrapPatch) Handle(_ string, resources []*anypb.Any) error {
	var patch []byte
	for i, r := range resources {
		if i > 0 || r.GetTypeUrl() != xdswire.BootstrapType {
			return fmt.Errorf("%d resources, the last of the type %q: want at most one of %s", len(resources), r.GetTypeUrl(), xdswire.BootstrapType)
		}
		patch = r.GetValue()
	}
	return f(patch)
}
