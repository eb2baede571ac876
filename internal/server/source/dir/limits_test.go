package dir_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
)

// many returns files with one service each in a folder.
func many(folder string, n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		name := fmt.Sprintf("%s-%02d", strings.ReplaceAll(strings.Trim(folder, "/."), "/", "-"), i)
		out[fmt.Sprintf("%s%02d.yaml", folder, i)] = service("s"+name, 1)
	}
	return out
}

// TestOverfullFolder: a folder with more files than MaxFiles displaces no other folder,
// at any level and in any order of reading, and the omission is reported.
func TestOverfullFolder(t *testing.T) {
	t.Parallel()
	const limit = 40
	for name, tc := range map[string]struct {
		large, small string
	}{
		"the large one is read first":     {"a/", "b/"},
		"the large one is read last":      {"b/", "a/"},
		"many folders in the large one":   {"a/x/", "b/"},
		"files of the directory itself":   {"", "b/"},
		"folders in one folder":           {"all/a/", "all/b/"},
		"few files beside a large folder": {"a/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, small := many(tc.large, 3*limit), many(tc.small, limit/4)
			if name == "many folders in the large one" {
				for i := range limit {
					maps.Copy(files, many(fmt.Sprintf("a/%02d/", i), 2))
				}
			}
			all := maps.Clone(files)
			maps.Copy(all, small)
			check := func(w *watchedDir) {
				t.Helper()
				w.until("every file of the small folder", func() bool {
					for file := range small {
						if !strings.Contains(fmt.Sprint(w.objects), ":"+file+":1 ") {
							return false
						}
					}
					return len(w.objects) <= limit
				})
				left, _, _ := strings.Cut(tc.large, "/")
				w.until("what is left out", func() bool {
					text := w.source.LeftOut()
					return strings.Contains(text, "holds more than 40 files and folders") && strings.Contains(text, w.path(left))
				})
				if text := w.source.LeftOut(); tc.small != "" && strings.Contains(text, w.path(strings.TrimSuffix(tc.small, "/"))) {
					t.Errorf("left out: %s", text)
				}
			}
			// At the start.
			w := prepare(t, all)
			w.source.LimitFiles(limit)
			w.run()
			check(w)
			// While it runs.
			w = prepare(t, files)
			w.source.LimitFiles(limit)
			w.run()
			for file, text := range small {
				w.write(file, text)
			}
			check(w)
			// There is room again.
			for file := range files {
				w.must(os.Remove(w.path(file)))
			}
			if name == "many folders in the large one" {
				w.must(os.RemoveAll(w.path("a")))
			}
			w.until("room", func() bool { return len(w.objects) == len(small) && w.source.LeftOut() == "" })
		})
	}
}
