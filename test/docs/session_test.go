package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

const (
	pageTimeout = 8 * time.Minute  // one page
	endTimeout  = 20 * time.Second // from the end of its last command until its processes are killed
)

// run runs the blocks of a page one after the other in one shell, in a directory that
// has nothing but what its world and the page put there.
func (p *page) run(t *testing.T, from place) {
	t.Helper()
	dir, scripts := harness.ShortDir(t), t.TempDir()
	home := filepath.Join(dir, "home")
	work := filepath.Join(dir, "w")
	for _, d := range []string{home, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range from.files {
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", path, work).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n")
	for i, b := range p.blocks {
		if b.notRun != "" {
			continue
		}
		text := b.text
		if b.inBack {
			text = strings.TrimSpace(text) + " &\n"
		}
		path := filepath.Join(scripts, strconv.Itoa(i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&script, "echo %d >&3\n", i)
		if b.code == 0 {
			fmt.Fprintf(&script, ". %[1]s >%[1]s.out 2>&1\n", path)
		} else {
			fmt.Fprintf(&script, "set +e; . %[1]s >%[1]s.out 2>&1; code=$?; set -e; [ $code = %[2]d ] || { echo \"exit code $code, want %[2]d\" >>%[1]s.out; exit 1; }\n", path, b.code)
		}
		if b.inBack {
			fmt.Fprintf(&script, "out=%[1]s.out; until %[2]s; do kill -0 $! && sleep 0.2; done >%[1]s.until 2>&1\n", path, b.until)
		}
	}
	reached, err := os.Create(filepath.Join(scripts, "reached"))
	if err != nil {
		t.Fatal(err)
	}
	defer reached.Close()
	ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir = work
	cmd.Env = append([]string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8", "TMPDIR=" + os.TempDir(), "GOCACHE=" + os.Getenv("GOCACHE")}, from.env...)
	cmd.ExtraFiles = []*os.File{reached} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endTimeout
	var talk strings.Builder
	cmd.Stdout, cmd.Stderr = &talk, &talk
	failed := cmd.Run()
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	seen := func(i int) string {
		out, err := os.ReadFile(filepath.Join(scripts, strconv.Itoa(i)+".out"))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		return string(out)
	}
	if failed != nil {
		numbers, err := os.ReadFile(reached.Name())
		if err != nil {
			t.Fatal(err)
		}
		order := strings.Fields(string(numbers))
		if len(order) == 0 {
			t.Fatalf("%s: %v\n%s", p.name, failed, &talk)
		}
		last, _ := strconv.Atoi(order[len(order)-1])
		for i, b := range p.blocks[:last] { // what runs in the background may say why
			if b.inBack || strings.HasSuffix(b.text, "&\n") {
				t.Logf("%s:%d:\n%s%s", p.name, b.line, b.text, tail(seen(i)))
			}
		}
		b := p.blocks[last]
		t.Fatalf("%s:%d: %v\n%s%s%s", p.name, b.line, failed, b.text, tail(seen(last)), &talk)
	}
	for i, b := range p.blocks {
		if b.compared && b.notRun == "" {
			if diff := differs(b.shown, seen(i)); diff != "" {
				t.Errorf("%s:%d: %s(-page +seen):\n%s", p.name, b.line, b.text, diff)
			}
		}
	}
}

// tail returns the end of a long text.
func tail(text string) string {
	const size = 8 << 10
	return text[max(0, len(text)-size):]
}
