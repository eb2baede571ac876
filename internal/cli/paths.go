package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

// ReadPaths returns the directories, and the content of files; - is standard input.
func ReadPaths(env *Env, paths []string) (dirs []string, read []load.File, err error) {
	for _, p := range paths {
		if p == "-" {
			text, err := io.ReadAll(io.LimitReader(env.Stdin, dir.MaxFileSize+1))
			switch {
			case err != nil:
				return nil, nil, fmt.Errorf("read standard input: %w", err)
			case len(text) > dir.MaxFileSize:
				return nil, nil, fmt.Errorf("standard input has more than %d bytes", dir.MaxFileSize)
			}
			read = append(read, load.File{Name: "standard input", Text: text})
			continue
		}
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			dirs = append(dirs, p)
			continue
		}
		text, err := files.Read(p, dir.MaxFileSize)
		if err != nil {
			return nil, nil, err
		}
		read = append(read, load.File{Name: p, Text: text})
	}
	return dirs, read, nil
}
