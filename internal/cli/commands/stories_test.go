//go:build !race

// Each command of a story is a process, which starts ten times slower with the race detector.

package commands

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestStories runs testdata/script/*.txtar: commands as users type them, with their output.
// A story has HOME and the XDG directories in its work directory, and these commands:
// `exitcode N meshctl …` runs meshctl and checks the exit code, `eventually N REGEXP
// meshctl …` repeats it until exit code and output match, `addresses NAME…` sets variables
// to free addresses, and `followhint NAME=VALUE…` runs the command in the last error.
// With -short, a story of many commands is skipped if the packages of the commands have
// tests: each command is a process, and starts in 20 ms of CPU.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir+"/home")
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv("XDG_STATE_HOME", "")
			// Most programs of a story end before their heap needs a collection.
			env.Setenv("GOGC", "off")
			env.Setenv("GOMEMLIMIT", "256MiB")
			return nil
		},
		RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode":   exitcode,
			"eventually": eventually,
			"addresses":  addresses,
			"followhint": followHint,
		},
	})
}
