package source

import "testing"

// TestModuleURLs: a URL without a scheme names an image, also where its registry has a port.
func TestModuleURLs(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		"registry.example/filter:v1": true, "registry.example:5000/filter:v1": true, "localhost:5000/filter": true, "10.0.0.1:5000/filter": true,
		"[::1]:5000/filter": true, "filter": true, "oci://registry.example:5000/filter@sha256:abc": true,
		"http://a.example:8080/f.wasm": true, "https://a.example/f.wasm": true, "file:///f.wasm": true, "file:/f.wasm": true,
		"": false, "ftp://a.example/f": false, "file://f": false, "file:f": false, "oci://%zz": false, "%zz": false,
	} {
		if fault := moduleFault(text); valid != (fault == nil) {
			t.Errorf("%q: %v", text, fault)
		}
	}
}
