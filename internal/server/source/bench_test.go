package source_test

import (
	"os"
	"testing"

	"github.com/meshctl/meshctl/internal/server/source"
)

// BenchmarkConvert converts the objects of testdata/convert/istio.yaml from JSON.
func BenchmarkConvert(b *testing.B) {
	text, err := os.ReadFile("testdata/convert/istio.yaml")
	if err != nil {
		b.Fatal(err)
	}
	var all [][]byte
	for _, v := range objects(b, string(text)) {
		one, err := v.JSON()
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, one)
	}
	c := &source.Converter{Cluster: "c"}
	b.ReportAllocs()
	for b.Loop() {
		for _, one := range all {
			if _, err := c.DecodeJSON(one); err != nil {
				b.Fatal(err)
			}
		}
	}
}
