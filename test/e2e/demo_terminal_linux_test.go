package e2e

import (
	"bufio"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/test/harness"
)

// openTerminal returns both ends of a pseudo-terminal with so many columns.
func openTerminal(t *testing.T, columns uint16) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return screen, terminal
}

// TestDemoLiveViewFitsTheTerminal reads the live view of a terminal that is
// too narrow for it, and then of one that is wide enough.
func TestDemoLiveViewFitsTheTerminal(t *testing.T) {
	const narrow, wide = 30, 100
	screen, terminal := openTerminal(t, narrow)
	c := newCommand(t, harness.ShortDir(t))
	c.Stdout = terminal
	c.start(t)
	terminal.Close() // the demo has its own

	shares := regexp.MustCompile(`^cluster1: +\d+ v1, +\d+ v2   cluster2: +\d+ v1, +\d+ v2$`)
	out := bufio.NewReader(screen)
	for cut, whole := false, false; !cut || !whole; {
		text, err := out.ReadString('K') // of the sequence that erases the rest of a line
		if err != nil {
			t.Fatalf("%v after %q\n%s", err, text, c.stderr)
		}
		line, ok := strings.CutSuffix(text[strings.LastIndexByte(text, '\r')+1:], "\x1b[K")
		if !ok {
			continue
		}
		switch {
		case shares.MatchString(line):
			whole = true
		case strings.HasSuffix(line, "…"):
			cut = true
			if n := utf8.RuneCountInString(line); n != narrow-1 {
				t.Errorf("%d columns of %d: %q", n, narrow, line)
			}
			size := &unix.Winsize{Row: 24, Col: wide}
			if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, size); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("neither a cut line nor a whole one: %q", line)
		}
	}

	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for {
		// The kernel reports the end of the other side as EIO.
		if _, err := out.ReadByte(); errors.Is(err, syscall.EIO) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	emptyDir(t, c.temp)
}
