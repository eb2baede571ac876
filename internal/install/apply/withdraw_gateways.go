package apply

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshctl/meshctl/internal/install"
)

// withdrawal is the time in which other clusters stop using a gateway. Their control planes watch
// its Service.
const withdrawal = 5 * time.Second

// withdraw removes the label that makes Services among the objects gateways of their network, and
// waits until other clusters no longer use them. Requests to a gateway that is already deleted would
// fail when they need a new connection.
func (c *Cluster) withdraw(ctx context.Context, objects []*unstructured.Unstructured, o Options) error {
	var gateways []string
	for _, object := range objects {
		if object.GetKind() != "Service" || object.GetLabels()[labelNetwork] == "" {
			continue
		}
		err := c.API.MergeAny(ctx, object, map[string]any{"metadata": map[string]any{"labels": map[string]any{labelNetwork: nil}}}, manager)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("%s: remove the label %s from %s: %w", c.Name, labelNetwork, install.Ref(object), err)
		default:
			gateways = append(gateways, install.Ref(object))
		}
	}
	if len(gateways) == 0 {
		return nil
	}
	o.Say("waiting %s until other clusters no longer use %s", withdrawal, strings.Join(gateways, ", "))
	select {
	case <-time.After(withdrawal):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
