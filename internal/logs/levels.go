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

// Default is the area of all lines that belong to no other one.
const Default = "default"

// Levels are the least levels that are logged, of each area of a program. They
// may be changed at any time, from any goroutine.
type Levels struct {
	areas []string
	vars  map[string]*slog.LevelVar // by area; the map does not change

	mu  sync.Mutex
	own map[string]slog.Level // areas that were given a level of their own
}

// NewLevels makes levels for the areas and the default one, all info.
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

// Areas lists the names of the areas, the default one first.
func (l *Levels) Areas() []string { return slices.Clone(l.areas) }

// Names are those of the levels, the most talkative first.
func Names() []string { return []string{"debug", "info", "warn", "error"} }

// Current is the level of each area.
func (l *Levels) Current() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]string, len(l.vars))
	for area, v := range l.vars {
		out[area] = strings.ToLower(v.Level().String())
	}
	return out
}

// Set changes levels: xds:debug,ca:warn. A level without an area is that of all
// areas; default:LEVEL is that of those that have none of their own. A text with
// anything wrong in it changes nothing.
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
			return fmt.Errorf("there is no log area %q%s: the areas are %s", area, near(area, l.areas), strings.Join(l.areas, ", "))
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
	return 0, fmt.Errorf("there is no log level %q%s: the levels are %s", name, near(name, Names()), strings.Join(Names(), ", "))
}

func near(word string, known []string) string {
	if n := output.NearestWord(word, known); n != "" {
		return fmt.Sprintf(", meant is perhaps %q", n)
	}
	return ""
}

// Handler hands on to next what is at least of the level of its area: that which
// the logger was made for by For, else the default one. next must let everything
// pass.
func (l *Levels) Handler(next slog.Handler) slog.Handler {
	return leveled{next, l, l.vars[Default]}
}

// For is the log of an area, whose lines carry its name. A log that is not made
// by Levels.Handler, or has no such area, stays what it is.
func For(log *slog.Logger, area string) *slog.Logger {
	h, ok := log.Handler().(leveled)
	if !ok || h.levels.vars[area] == nil {
		return log
	}
	h.level = h.levels.vars[area]
	h.Handler = h.Handler.WithAttrs([]slog.Attr{slog.String("area", area)})
	return slog.New(h)
}

type leveled struct {
	slog.Handler
	levels *Levels
	level  *slog.LevelVar
}

// Enabled implements slog.Handler.
func (h leveled) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	return leveled{h.Handler.WithAttrs(attrs), h.levels, h.level}
}

// WithGroup implements slog.Handler.
func (h leveled) WithGroup(name string) slog.Handler {
	return leveled{h.Handler.WithGroup(name), h.levels, h.level}
}
