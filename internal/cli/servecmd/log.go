package servecmd

import (
	"log/slog"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/output"
)

// newLog returns the log on standard error and the levels of its areas, which may change
// at any time.
func newLog(env *cli.Env, format, level string, areas []string) (*slog.Logger, *logs.Levels, error) {
	levels := logs.NewLevels(areas...)
	if err := levels.Set(level); err != nil {
		return nil, nil, cli.Usagef("--log-level %q: %w", level, err)
	}
	opts := &slog.HandlerOptions{Level: slog.LevelDebug} // levels filters lines
	var lines slog.Handler = slog.NewTextHandler(env.Stderr, opts)
	if format == "json" {
		lines = slog.NewJSONHandler(output.JSONLines(env.Stderr), opts)
	}
	return slog.New(levels.Handler(logs.Limit(lines, env.Now))), levels, nil
}
