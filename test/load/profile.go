package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/commands"
)

// serveProfiled runs meshctl in this process. Each line on requests starts a
// CPU profile of that name, an empty one ends it, and then the heap profile
// is written, too.
func serveProfiled(ctx context.Context, dir string, requests io.Reader, args []string) error {
	go func() {
		lines := bufio.NewScanner(requests)
		var end func() error
		for lines.Scan() {
			var err error
			if end != nil {
				err = end()
				end = nil
			}
			if name := lines.Text(); err == nil && name != "" {
				end, err = startProfile(filepath.Join(dir, strings.ReplaceAll(name, " ", "-")))
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "Error:", err)
			}
		}
	}()
	env := &cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv, Now: time.Now}
	if code := commands.Run(ctx, env, args); code != 0 {
		return fmt.Errorf("meshctl ended with code %d", code)
	}
	return nil
}

func startProfile(base string) (end func() error, err error) {
	f, err := os.Create(base + ".cpu.pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		heap, err := os.Create(base + ".heap.pprof")
		if err != nil {
			return errors.Join(err, f.Close())
		}
		runtime.GC() // the profile shows the last collection
		return errors.Join(pprof.WriteHeapProfile(heap), heap.Close(), f.Close())
	}, nil
}
