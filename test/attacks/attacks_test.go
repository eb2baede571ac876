// Package attacks attacks the whole product as a tenant would, who may write objects in a
// namespace of his own, or as a pod without credentials. Each test is an attack that once
// succeeded, with real Envoys and agents.
package attacks

import (
	"os"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

// meshctl is the path of the program under test, built once.
var meshctl string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &meshctl)) }

// eventually waits until condition returns nil.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	harness.Eventually(t, deadline, what, condition)
}
