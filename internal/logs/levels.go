// Package logs decides which lines a program logs. Levels sets the least level of
// each area of the program while it runs; Limit bounds the lines of each message.
package logs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/meshctl/meshctl/internal/output"
)

// Default is the area of all lines without another area.
const Default = "default"

// Levels holds the least level that each area of a program logs. Its methods may be
// called from any goroutine.
type Levels struct {
	areas []string
	vars  map[string]*slog.LevelVar // by area; the map does not change

	mu  sync.Mutex
	own map[string]slog.Level // levels that Set got for single areas
}

// NewLevels returns the level info for the areas and for Default.
func NewLevels(areas ...string) *Levels {
	l := &Levels{vars: make(map[string]*slog.LevelVar), own: make(map[string]slog.Level)}
	l.areas = append(l.areas, areas...)
	slices.Sort(l.areas)
	l.areas = append([]string{Default}, l.areas...)
	for _, area := range l.areas {
		l.vars[area] = &slog.LevelVar{}
	}
	return l
}

// Names returns the names of the levels, the least level first.
func Names() []string { return []string{"debug", "info", "warn", "error"} }

// Current returns the level of each area.
func (l *Levels) Current() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]string, len(l.vars))
	for area, v := range l.vars {
		out[area] = strings.ToLower(v.Level().String())
	}
	return out
}

// Set changes levels by a list such as "xds:debug,ca:warn". A level without an area
// applies to all areas; default:LEVEL applies to the areas without a level of their
// own. A list with an error changes nothing.
func (l *Levels) Set(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	fallback, own := l.vars[Default].Level(), maps.Clone(l.own)
	for item := range strings.SplitSeq(text, ",") {
		area, name, found := strings.Cut(strings.TrimSpace(item), ":")
		if !found {
			area, name = "", area
		}
		level, err := parseLevel(name)
		if err != nil {
			return err
		}
		switch {
		case !found:
			clear(own)
			fallback = level
		case area == Default:
			fallback = level
		case l.vars[area] == nil:
			return fmt.Errorf("unknown log area %q: the areas are %s%s", area, strings.Join(l.areas, ", "), output.DidYouMean(area, l.areas))
		default:
			own[area] = level
		}
	}
	l.own = own
	for area, v := range l.vars {
		level, ok := own[area]
		if !ok {
			level = fallback
		}
		v.Set(level)
	}
	return nil
}

func parseLevel(name string) (slog.Level, error) {
	switch strings.ToLower(name) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("unknown log level %q: the levels are %s%s", name, strings.Join(Names(), ", "), output.DidYouMean(name, Names()))
}

// Handler returns a handler that passes to next the lines of at least the level of
// their area. The area is the one given to For, else Default. next must not filter
// by level itself.
func (l *Levels) Handler(next slog.Handler) slog.Handler {
	return levelHandler{next, l, l.vars[Default]}
}

// For returns the logger of an area, which adds the area's name to each line. It
// returns log itself if log has no Levels.Handler or no such area.
func For(log *slog.Logger, area string) *slog.Logger {
	h, ok := log.Handler().(levelHandler)
	if !ok || h.levels.vars[area] == nil {
		return log
	}
	h.level = h.levels.vars[area]
	h.Handler = h.Handler.WithAttrs([]slog.Attr{slog.String("area", area)})
	return slog.New(h)
}

type levelHandler struct {
	slog.Handler
	levels *Levels
	level  *slog.LevelVar
}

func (h levelHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h levelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(attrs), h.levels, h.level}
}

func (h levelHandler) WithGroup(name string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(name), h.levels, h.level}
}
