// Command chart writes deploy: the templates of the Helm charts and the Kustomize base.
// They make the same objects as meshctl install. Chart.yaml and values.yaml are not
// generated.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "../../deploy", "folder to write")
	flag.Parse()
	if err := write(*out); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func write(out string) error {
	files, err := generate()
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
