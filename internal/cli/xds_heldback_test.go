package cli

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds"
)

func TestHeldBackTable(t *testing.T) {
	held := []told[xds.HeldBack]{
		{Thing: xds.HeldBack{
			Type: "CDS", Resource: "a", Version: "v2", Served: "v1", Streams: 7, Envoy: "1.40.0", View: "namespace apps",
			RefusedBy: []string{"spiffe://td/ns/a/sa/x", "spiffe://td/ns/b/sa/y"}, Error: "no good",
			Since: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC),
		}},
		{Thing: xds.HeldBack{Type: "LDS", Resource: "b", Version: "v3", Envoy: "1.40.0"}},
	}
	var out bytes.Buffer
	if err := heldBackTable(false, held).Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^03:02:01\.000 +CDS +a +v2 +v1 +7 +1\.40\.0 +spiffe://td/ns/a/sa/x, spiffe://td/ns/b/sa/y +namespace apps +no good`,
		`(?m)^- +LDS +b +v3 +nothing +0 +1\.40\.0`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no row with %s in\n%s", want, out.String())
		}
	}
}
