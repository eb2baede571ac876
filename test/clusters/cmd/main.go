// Command cmd starts and stops the clusters of package clusters, for people:
//
//	go run ./test/clusters/cmd check
//	go run ./test/clusters/cmd up DIR
//	go run ./test/clusters/cmd import DIR IMAGE.tar
//	go run ./test/clusters/cmd down DIR
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshctl/meshctl/test/clusters"
)

func main() {
	clusters.Main()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clusters:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "check":
		if err := clusters.Missing(); err != nil {
			fmt.Fprintln(os.Stderr, "SKIPPED: the tests of clusters with pods:", err)
		}
		return nil
	case len(args) == 2 && args[0] == "up":
		c, err := clusters.Start(ctx, args[1], false)
		if err != nil {
			return err
		}
		fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
		return nil
	case len(args) == 3 && args[0] == "import":
		c, err := clusters.Load(args[1])
		if err != nil {
			return err
		}
		return c.Import(ctx, args[2])
	case len(args) == 2 && args[0] == "down":
		c, err := clusters.Load(args[1])
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.Stop()
	}
	return errors.New("usage: check, up DIR, import DIR IMAGE.tar, or down DIR")
}
