package process

import (
	"bufio"
	"io"
	"os"
	"syscall"
	"testing"
)

// TestStdoutOpensAgain gives a process a socket as standard output, as systemd
// does, and has it open /dev/stdout, as Envoy does for access logs.
func TestStdoutOpensAgain(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	p, err := Start(t.Context(), Command{Name: "envoy", Path: "/bin/sh", Args: []string{"-c", "echo logged > /dev/stdout"}, Stdout: theirs, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(ours).ReadString('\n'); line != "logged\n" {
		t.Errorf("the output is %q", line)
	}
}
