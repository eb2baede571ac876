package config

import (
	"slices"
	"strings"
	"testing"
)

// TestHeadersHaveNoEffect: variables with headers are reported once, also those of proxyMetadata.
func TestHeadersHaveNoEffect(t *testing.T) {
	_, warnings, err := Resolve(Input{Environ: append(base(), "XDS_HEADER_A=b", "PROXY_CONFIG={proxyMetadata: {XDS_HEADER_A: c, CA_HEADER_B: d}}")})
	want := []string{"CA_HEADER_B has no effect here", "XDS_HEADER_A has no effect here"}
	if err != nil || !slices.EqualFunc(warnings, want, strings.HasPrefix) {
		t.Errorf("warnings %q, %v", warnings, err)
	}
}
