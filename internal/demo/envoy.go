package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/process"
)

// The oldest Envoy that accepts the resources that meshctl generates.
const minEnvoyMajor, minEnvoyMinor = 1, 36

// cachedEnvoy is the path of the Envoy that make envoy installs, below the repository.
const cachedEnvoy = ".cache/envoy/envoy"

const getEnvoy = "run make envoy in the repository, or name one with --envoy"

// findEnvoy returns the absolute path of the Envoy to use and its version. It uses path if it
// is not empty, else the Envoy in the working directory's cache, else the Envoy on PATH. A too
// old Envoy is an error.
func findEnvoy(ctx context.Context, path string) (found, version string, err error) {
	if path == "" {
		path = cachedEnvoy
		if _, err := os.Stat(path); err != nil {
			path, err = exec.LookPath("envoy")
			if err != nil {
				return "", "", fmt.Errorf("no Envoy in %s and none on PATH; %s", cachedEnvoy, getEnvoy)
			}
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", "", fmt.Errorf("envoy: %w", err)
	}
	out, err := printVersion(ctx, path)
	if err != nil {
		return "", "", err
	}
	if version, err = checkEnvoyVersion(out); err != nil {
		return "", "", fmt.Errorf("envoy %s: %w", path, err)
	}
	return path, version, nil
}

// versionTimeout bounds envoy --version.
const versionTimeout = 10 * time.Second

// printVersion returns the output of envoy --version.
func printVersion(ctx context.Context, path string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, path, "--version")
	process.Isolate(cmd) // a script's child holds the pipe, too
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limited.Err() != nil:
		return "", fmt.Errorf("envoy %s --version did not end within %s; %s", path, versionTimeout, getEnvoy)
	case err != nil:
		return "", fmt.Errorf("envoy %s --version: %w; %s", path, err, getEnvoy)
	}
	return string(out), nil
}

// checkEnvoyVersion reads what envoy --version prints, such as
// "envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL".
func checkEnvoyVersion(out string) (string, error) {
	m := regexp.MustCompile(`/((\d+)\.(\d+)\.\d+[^/]*)/`).FindStringSubmatch(out)
	if m == nil {
		line, _, _ := strings.Cut(out, "\n")
		return "", fmt.Errorf("--version printed %.100q, which names no version of Envoy", line)
	}
	major, majorErr := strconv.Atoi(m[2])
	minor, minorErr := strconv.Atoi(m[3])
	if err := errors.Join(majorErr, minorErr); err != nil {
		return "", err
	}
	if major < minEnvoyMajor || major == minEnvoyMajor && minor < minEnvoyMinor {
		return "", fmt.Errorf("its version is %s, want %d.%d or later; %s", m[1], minEnvoyMajor, minEnvoyMinor, getEnvoy)
	}
	return m[1], nil
}
