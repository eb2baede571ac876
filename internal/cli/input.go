package cli

import (
	"fmt"
	"io"

	"github.com/meshctl/meshctl/internal/files"
)

// ReadInput reads the file path, or standard input when path is "-". name is
// what to call it.
func ReadInput(env *Env, path string, limit int64) (name string, data []byte, err error) {
	if path != "-" {
		data, err = files.Read(path, limit)
		return path, data, err
	}
	name = "standard input"
	data, err = io.ReadAll(io.LimitReader(env.Stdin, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it holds more than the %d bytes allowed", limit)
	}
	if err != nil {
		return name, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return name, data, nil
}
