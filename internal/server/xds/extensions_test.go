package xds

import (
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestExtensionsAreNotRemoved: Proxies get the extensions that they name, even later,
// and no removals.
func TestExtensionsAreNotRemoved(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh().set("ECDS", "shared", "a", "a:1").set("ECDS", "shared", "other", "other:1")
		b := startServer(t, w, func(c *Config, _ *Access) { c.Generator = generatorOf(xdswire.ExtensionType) })
		c := b.connect(v, "p")
		c.subscribe("ECDS", "a", "missing")
		c.wantAck("ECDS", "a=a:1")
		b.mesh.set("ECDS", "shared", "missing", "missing:1").set("ECDS", "shared", "other", "other:2")
		b.push()
		c.wantAck("ECDS", "missing=missing:1")
		b.mesh.set("ECDS", "shared", "a", "")
		b.push()
		c.quiet()
		b.mesh.set("ECDS", "shared", "a", "a:1")
		b.push()
		c.wantAck("ECDS", "a=a:1")

		alone := b.connect(v, "q")
		alone.subscribe("ECDS", "nothing")
		alone.wantAck("ECDS", "") // an answer nevertheless
		b.mesh.set("ECDS", "shared", "nothing", "nothing:1")
		b.push()
		alone.wantAck("ECDS", "nothing=nothing:1")
	})
}

// TestHeldExtensionsAreNotRemoved: A reconnecting proxy keeps an extension that no
// longer exists.
func TestHeldExtensionsAreNotRemoved(t *testing.T) {
	b := startServer(t, newTestMesh().set("ECDS", "shared", "a", "a:1"), func(c *Config, _ *Access) { c.Generator = generatorOf(xdswire.ExtensionType) })
	c := b.connect(xdswire.Delta, "p")
	c.reconnect("ECDS", map[string]string{"gone": "1"}, "a", "gone")
	c.wantAck("ECDS", "a=a:1")
	c.quiet()
}
