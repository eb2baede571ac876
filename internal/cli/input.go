package cli

import (
	"fmt"
	"io"

	"github.com/meshctl/meshctl/internal/files"
)

// ReadInput reads a file, or standard input for "-". name is for messages.
func ReadInput(env *Env, path string, limit int64) (name string, data []byte, err error) {
	if path != "-" {
		data, err = files.Read(path, limit)
		return path, data, err
	}
	name = "standard input"
	data, err = io.ReadAll(io.LimitReader(env.Stdin, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	if err != nil {
		return name, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return name, data, nil
}
