package installcmd

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
)

// yesVar defines --yes.
func yesVar(f *pflag.FlagSet, p *bool) {
	f.BoolVarP(p, "yes", "y", false, "Do not ask before changes that break connections or delete what is in use")
	f.BoolVar(p, "skip-confirmation", false, "The name of --yes in istioctl")
	_ = f.MarkHidden("skip-confirmation") // fails for an unknown flag only
	cli.MarkWeakening(f, "yes")
	cli.MarkWeakening(f, "skip-confirmation")
}

// confirm returns nil if there are no effects, if yes is set, or if the user agrees at the
// terminal. what has these effects; instead is what else the user may do.
func confirm(env *cli.Env, yes bool, what string, effects []string, instead string) error {
	if len(effects) == 0 {
		return nil
	}
	if !yes && !env.Interactive {
		return fmt.Errorf("nothing is changed: %s %s; %s, or agree with --yes", what, strings.Join(effects, ", "), instead)
	}
	for _, e := range effects {
		env.Notef("%s %s", what, e)
	}
	if yes {
		return nil
	}
	fmt.Fprint(env.Stderr, "Continue? [y/N] ")
	answer, err := bufio.NewReader(env.Stdin).ReadString('\n')
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		if err != nil && word == "" {
			return fmt.Errorf("nothing is changed: read the answer: %w", err)
		}
		return fmt.Errorf("nothing is changed: %s, or answer y", instead)
	}
	return nil
}
