package logs

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"
)

// recorded returns a logger that writes lines without times to the buffer.
func recorded(areas ...string) (*slog.Logger, *Levels, *bytes.Buffer) {
	var out bytes.Buffer
	l := NewLevels(areas...)
	plain := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(l.Handler(plain)), l, &out
}

func TestLevels(t *testing.T) {
	t.Parallel()
	log, levels, out := recorded("xds", "ca")
	xds := For(log, "xds").With("proxy", "p") // made before Set
	ca := For(log, "ca").WithGroup("g")
	for _, step := range []struct{ set, want string }{
		{"info", "level=INFO msg=default\nlevel=INFO msg=xds area=xds proxy=p\nlevel=INFO msg=ca area=ca g.k=v\n"},
		{"xds:debug,ca:error", "level=INFO msg=default\nlevel=DEBUG msg=xds area=xds proxy=p\nlevel=INFO msg=xds area=xds proxy=p\n"},
		{"default:debug", "level=DEBUG msg=default\nlevel=INFO msg=default\nlevel=DEBUG msg=xds area=xds proxy=p\nlevel=INFO msg=xds area=xds proxy=p\n"},
		{"WARN", ""},
		{" ca:info , default:debug", "level=DEBUG msg=default\nlevel=INFO msg=default\nlevel=DEBUG msg=xds area=xds proxy=p\nlevel=INFO msg=xds area=xds proxy=p\nlevel=INFO msg=ca area=ca g.k=v\n"},
		{"xds:info,warn", ""}, // the later item wins
	} {
		if err := levels.Set(step.set); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		log.Debug("default")
		log.Info("default")
		xds.Debug("xds")
		xds.Info("xds")
		ca.Debug("ca", "k", "v")
		ca.Info("ca", "k", "v")
		if out.String() != step.want {
			t.Errorf("after %s:\n%swant\n%s", step.set, out, step.want)
		}
	}
}

func TestLevelsRefuse(t *testing.T) {
	t.Parallel()
	_, levels, _ := recorded("xds", "ca")
	before := levels.Current()
	for text, want := range map[string]string{
		"":                    `unknown log level "": the levels are debug, info, warn, error`,
		"xds:debug,xdss:info": `unknown log area "xdss": the areas are default, ca, xds, did you mean "xds"?`,
		"xds:debg":            `unknown log level "debg": the levels are debug, info, warn, error, did you mean "debug"?`,
		"xds:":                `unknown log level ""`,
		"debug,":              `unknown log level ""`,
		":debug":              `unknown log area ""`,
	} {
		err := levels.Set(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
		if !maps.Equal(levels.Current(), before) {
			t.Errorf("%q was refused and changed something: %v", text, levels.Current())
		}
	}
}

// TestForeignLog: For returns a logger unchanged if it has no levels or lacks the area.
func TestForeignLog(t *testing.T) {
	t.Parallel()
	plain := slog.New(slog.DiscardHandler)
	if For(plain, "xds") != plain {
		t.Error("a logger without levels was changed")
	}
	log, _, _ := recorded("xds")
	if For(log, "other") != log {
		t.Error("a logger was changed for an unknown area")
	}
}

// FuzzLevels: a refused list changes nothing, and Current shows an accepted one.
func FuzzLevels(f *testing.F) {
	for _, text := range []string{"info", "xds:debug,ca:warn", "default:error", "xds:", ",", "a:b:c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, levels, _ := recorded("xds", "ca")
		before := levels.Current()
		if err := levels.Set(text); err != nil {
			if !maps.Equal(before, levels.Current()) {
				t.Errorf("%q was refused and changed something", text)
			}
			return
		}
		var items []string
		for area, level := range levels.Current() {
			items = append(items, area+":"+level)
		}
		_, again, _ := recorded("xds", "ca")
		if err := again.Set(strings.Join(items, ",")); err != nil || !maps.Equal(levels.Current(), again.Current()) {
			t.Errorf("%q gives %v, which Set refuses: %v", text, items, err)
		}
	})
}

// BenchmarkDisabled: a line that is not logged allocates nothing.
func BenchmarkDisabled(b *testing.B) {
	log, _, _ := recorded("xds")
	log = For(log, "xds")
	b.ReportAllocs()
	for b.Loop() {
		log.Debug("nothing")
	}
}
