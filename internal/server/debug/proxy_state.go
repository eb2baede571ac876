package debug

import (
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// stateOf returns the state of a type of a stream.
func stateOf(t *history.TypeStatus) proxystatus.State {
	switch {
	case t.NACK != nil || len(t.Quarantined) > 0:
		return proxystatus.Error
	case t.Sent == "":
		return proxystatus.NotSent
	case t.Awaited:
		return proxystatus.Stale
	}
	return proxystatus.Synced
}
