package commands

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestMain gives the stories the programs meshctl and proxy.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"meshctl": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			code := Run(ctx, &cli.Env{
				Stdin:     os.Stdin,
				Stdout:    os.Stdout,
				Stderr:    os.Stderr,
				LookupEnv: os.LookupEnv,
				Now:       time.Now,
			}, os.Args[1:])
			stop()
			os.Exit(code)
		},
		"proxy": storyProxy,
	})
}

// exitcode implements the story command `exitcode N program args…`.
func exitcode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N program [args...]")
	}
	if got, want := run(ts, args[1:]), args[0]; got != want {
		ts.Fatalf("exit code %s, want %s", got, want)
	}
}

// run runs a program and returns its exit code.
func run(ts *testscript.TestScript, args []string) string {
	var exit *exec.ExitError
	if err := ts.Exec(args[0], args[1:]...); errors.As(err, &exit) {
		return strconv.Itoa(exit.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	return "0"
}

// eventually implements the story command `eventually N REGEXP program args…`.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: eventually N REGEXP program [args...]")
	}
	want := regexp.MustCompile("(?m)" + args[1])
	for end := time.Now().Add(clitest.Patience); ; time.Sleep(100 * time.Millisecond) {
		got := run(ts, args[2:])
		if got == args[0] && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("exit code %s, want %s and a result with %s", got, args[0], args[1])
		}
	}
}

// followHint implements the story command `followhint NAME=VALUE…`: it runs the command at
// the end of the last error, with values for names such as DIR.
func followHint(ts *testscript.TestScript, neg bool, values []string) {
	_, command, ok := strings.Cut(ts.ReadFile("stderr"), ": meshctl ")
	if neg || !ok {
		ts.Fatalf("the last error suggests no command: %s", ts.ReadFile("stderr"))
	}
	line, _, _ := strings.Cut(command, "\n")
	words := shellWords("meshctl " + line)[0]
	for i, word := range words {
		for _, v := range values {
			if name, value, _ := strings.Cut(v, "="); name == word {
				words[i] = value
			}
		}
	}
	ts.Logf("[%s]\n", strings.Join(words, " "))
	if code := run(ts, words); code != "0" {
		ts.Fatalf("the suggested command ends with %s", code)
	}
}

// addresses implements the story command `addresses NAME…`.
func addresses(ts *testscript.TestScript, _ bool, names []string) {
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		ts.Setenv(name, l.Addr().String())
		ts.Check(l.Close())
	}
}
