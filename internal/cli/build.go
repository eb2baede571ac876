package cli

import (
	"cmp"
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// version overrides the version that the Go build recorded. Only the linker sets it.
var version string

// Build describes this binary.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitzero"` // absent if the build had no repository
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	// FIPS140 reports whether the FIPS 140-3 module of Go does the cryptography.
	FIPS140 bool `json:"fips140"`
}

// String returns, for example, v1.2.0 (go1.26.0, linux/amd64) commit 1f2e….
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

// Istio returns the build in the form of istioctl: version, revision and status.
func (b Build) Istio() string {
	status := "Clean"
	if strings.HasSuffix(b.Version, "+dirty") {
		status = "Modified"
	}
	return b.Version + "-" + cmp.Or(b.Commit, "unknown") + "-" + status
}

// CurrentBuild returns the build of this binary.
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
