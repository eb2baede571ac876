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

// TestExtensionsComeBeforeListeners: listeners that change together with extensions wait for the
// ACK of the response with the extensions, also of an earlier one.
func TestExtensionsComeBeforeListeners(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh().set("ECDS", "shared", "a", "a:1").set("LDS", "shared", "l", "l:1")
		b := startServer(t, w, func(c *Config, _ *Access) { c.Generator = generatorOf(xdswire.ExtensionType) })
		c := b.connect(v, "p")
		c.subscribe("LDS")
		c.wantAck("LDS", "l=l:1")
		c.subscribe("ECDS", "a")
		c.wantAck("ECDS", "a=a:1")
		b.mesh.set("ECDS", "shared", "a", "a:2").set("LDS", "shared", "l", "l:2")
		b.push()
		c.wantAck("ECDS", "a=a:2")
		c.wantAck("LDS", "l=l:2")

		b.mesh.set("ECDS", "shared", "a", "a:3")
		b.push()
		earlier := c.want("ECDS", "a=a:3")
		b.mesh.set("ECDS", "shared", "a", "a:4").set("LDS", "shared", "l", "l:3")
		b.push()
		c.quiet()
		c.ack(earlier)
		c.wantAck("ECDS", "a=a:4")
		c.wantAck("LDS", "l=l:3")
	})
}
