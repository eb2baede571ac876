package checkcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

// readPaths returns the directories, and the content of files; - is standard input.
func readPaths(env *cli.Env, paths []string) (dirs []string, read []load.File, err error) {
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

// clusters returns the sources of the clusters.
func (o *analyzeOptions) clusters(env *cli.Env) ([]load.Cluster, error) {
	own := load.Cluster{SecretNamespaces: o.secretNamespaces}
	contexts := o.contexts
	if len(o.paths) == 0 && len(contexts) == 0 {
		contexts = []string{""}
	}
	var out []load.Cluster
	for _, text := range contexts {
		c := own
		id, name, named := strings.Cut(text, "=")
		if !named {
			id, name = text, text
		}
		access, err := kube.Load(o.Options(env, name))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && len(o.contexts) == 0:
			return nil, fmt.Errorf("%w, or name files and directories to check", err)
		case err != nil:
			return nil, err
		}
		c.Config, c.ID = access.Config, mesh.ClusterID(cmp.Or(id, access.Context))
		out = append(out, c)
	}
	if len(out) == 0 {
		out = append(out, load.Cluster{ID: mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes"))})
	}
	out[0].ID = cmp.Or(mesh.ClusterID(o.clusterID), out[0].ID)
	var err error
	if out[0].Dirs, out[0].Files, err = readPaths(env, o.paths); err != nil {
		return nil, err
	}
	for _, text := range o.remoteDirs {
		id, dir, ok := strings.Cut(text, "=")
		if !ok || id == "" || dir == "" {
			return nil, cli.Usagef("--remote-dir: %q is not CLUSTER=DIR", text)
		}
		out = append(out, load.Cluster{ID: mesh.ClusterID(id), Dirs: []string{dir}})
	}
	for i, c := range out {
		if slices.ContainsFunc(out[:i], func(other load.Cluster) bool { return other.ID == c.ID }) {
			return nil, cli.Usagef("two clusters have the name %q: name one of them with CLUSTER=", c.ID)
		}
	}
	return out, nil
}
