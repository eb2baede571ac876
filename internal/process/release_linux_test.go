package process

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnchangedMappings: only read-only mappings of the program without pages of their own count.
func TestUnchangedMappings(t *testing.T) {
	const maps = `00400000-01a00000 r-xp 00000000 fe:00 12 /usr/bin/meshctl
Rss:               14000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01a00000-03000000 r--p 01600000 fe:00 12 /usr/bin/meshctl
Anonymous:             4 kB
03000000-03100000 rw-p 02c00000 fe:00 12 /usr/bin/meshctl
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 13 /lib/other
Anonymous:             0 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
Anonymous:            12 kB
`
	want := []mapping{{0x400000, 0x1a00000}}
	if diff := cmp.Diff(want, unchangedMappings([]byte(maps), "/usr/bin/meshctl"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestReleaseMemory: fewer pages of the program are mapped, and the program goes on.
func TestReleaseMemory(t *testing.T) {
	before := mappedPages(t)
	ReleaseMemory()
	if after := mappedPages(t); after >= before {
		t.Errorf("%d KiB of files are mapped, %d KiB before", after, before)
	}
}

// mappedPages returns how much of files this process has mapped, in KiB.
func mappedPages(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the kernel does not report RssFile")
	return 0
}
