package clusters

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

const (
	repository = "../.."
	// insideVar is set in the test process that has a network of its own.
	insideVar = "MESHCTL_TEST_CLUSTERS"
	// version is the version of the tested program and its image, and earlier the one of another
	// revision of the repository.
	version = "e2e"
	earlier = "earlier"
)

var earlierRevision = flag.String("earlier", "HEAD~1", "the revision whose control plane TestFaults upgrades from")

// programs is the directory with meshctl, kubectl and image.tar; empty if this machine
// cannot run clusters.
var programs string

// TestMain runs the tests in a network namespace of their own, in which nothing else has
// the addresses of the clusters.
func TestMain(m *testing.M) {
	Main()
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if programs = os.Getenv(insideVar); programs != "" {
		if err := harness.LoopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "bring loopback up:", err)
			return 1
		}
		return m.Run()
	}
	if testing.Short() || Missing() != nil {
		return m.Run() // the tests skip
	}
	dir, err := os.MkdirTemp("", "clusters-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code, err := 1, prepare(dir)
	if err == nil {
		code, err = harness.InOwnNetwork(insideVar + "=" + dir)
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// prepare builds meshctl and its image, and the earlier revision and its image if a test needs them.
func prepare(dir string) error {
	root, err := filepath.Abs(repository)
	if err != nil {
		return err
	}
	built, err := harness.Cached("kube/kubectl", "kube")
	if err != nil {
		return err
	}
	if err := os.Symlink(built, filepath.Join(dir, "kubectl")); err != nil {
		return err
	}
	if err := buildImage(root, root, dir, version); err != nil || !*faults {
		return err
	}
	clone := filepath.Join(dir, "clone")
	if err := runIn("", "git", "-C", root, "worktree", "add", "--detach", "--quiet", clone, *earlierRevision); err != nil {
		return fmt.Errorf("%w: name another revision with -earlier", err)
	}
	defer func() { _ = runIn("", "git", "-C", root, "worktree", "remove", "--force", clone) }()
	below := filepath.Join(dir, earlier)
	if err := os.Mkdir(below, 0o700); err != nil {
		return err
	}
	return buildImage(root, clone, below, earlier)
}

// buildImage builds meshctl of a clone and its image into a directory.
func buildImage(root, clone, dir, version string) error {
	if err := runIn("", "make", "--silent", "-C", clone, "build", "VERSION="+version, "OUT="+dir); err != nil {
		return err
	}
	return runIn("", "go", "-C", filepath.Join(root, "tools/image"), "run", ".", "-root", root, "-meshctl", filepath.Join(dir, "meshctl"),
		"-out", filepath.Join(dir, "image.tar"), "-name", "localhost/meshctl:"+version)
}
