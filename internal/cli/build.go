package cli

import (
	"cmp"
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// version overrides what the Go build recorded; only the linker sets it.
var version string

// Build says what this binary was made from.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitzero"` // absent if the build had no repository
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	// FIPS140 is whether cryptography is that of the validated module of Go.
	FIPS140 bool `json:"fips140"`
}

// String is such as: v1.2.0 (go1.26.0, linux/amd64) commit 1f2e…
func (b Build) String() string {
	s := fmt.Sprintf("%s (%s, %s)", b.Version, b.GoVersion, b.Platform)
	if b.Commit != "" {
		s += " commit " + b.Commit
	}
	if b.FIPS140 {
		s += " FIPS 140-3"
	}
	return s
}

// Istio is the build as istioctl reads it: version, revision and status.
func (b Build) Istio() string {
	status := "Clean"
	if strings.HasSuffix(b.Version, "+dirty") {
		status = "Modified"
	}
	return b.Version + "-" + cmp.Or(b.Commit, "unknown") + "-" + status
}

func CurrentBuild() Build {
	b := Build{
		Version:   version,
		GoVersion: runtime.Version(),
		Platform:  runtime.GOOS + "/" + runtime.GOARCH,
		FIPS140:   fips140.Enabled(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	return b
}
