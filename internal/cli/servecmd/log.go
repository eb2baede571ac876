package servecmd

import (
	"log/slog"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/output"
)

// newLog makes the log on standard error, with a level for each of the areas,
// which may be changed at any time.
func newLog(env *cli.Env, format, level string, areas []string) (*slog.Logger, *logs.Levels, error) {
	levels := logs.NewLevels(areas...)
	if err := levels.Set(level); err != nil {
		return nil, nil, cli.Usagef("--log-level %q: %w", level, err)
	}
	opts := &slog.HandlerOptions{Level: slog.LevelDebug} // levels leaves out the rest
	var lines slog.Handler
	switch format {
	case "text":
		lines = slog.NewTextHandler(env.Stderr, opts)
	case "json":
		lines = slog.NewJSONHandler(output.JSONLines(env.Stderr), opts)
	default:
		return nil, nil, cli.Usagef("--log-format %q: want text or json", format)
	}
	return slog.New(levels.Handler(logs.Limit(lines, env.Now))), levels, nil
}
