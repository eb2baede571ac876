package xds

// neverRemoved says that a resource that is gone is not told of. A filter whose
// configuration is said to be gone answers each request with an error, also on
// connections of a listener that drains because it had the filter; Envoy gives
// up by itself what no listener refers to.
func neverRemoved(i int) bool { return i == ecds }
