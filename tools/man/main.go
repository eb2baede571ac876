// Command man writes the manual pages of meshctl into a folder. The same version gives the
// same bytes.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/commands"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: man FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	root := commands.Root(&cli.Env{
		Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	plain(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "meshctl", Date: &time.Time{}}, folder)
}

// plain leaves out the date and the tool of each page.
func plain(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		plain(sub)
	}
}
