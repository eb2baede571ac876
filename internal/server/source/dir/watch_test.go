package dir_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSameContent(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 1)})
	w.write("a.yaml", service("a", 1))
	w.must(os.Chtimes(w.path("a.yaml"), time.Time{}, time.Unix(1, 0)))
	w.barrier()
	if len(w.seen()) != 2 {
		t.Errorf("a file with the same content made batches: %q", w.seen())
	}
}

func TestFolders(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": namespace("a")})

	w.must(os.MkdirAll(w.path("x/y/z"), 0o755)) // created later, all at once
	w.write("x/y/z/b.yaml", namespace("b"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "x/y/z/b.yaml:1"})

	w.must(os.Rename(w.path("x"), w.path("w"))) // renamed with all in it
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "w/y/z/b.yaml:1"})
	w.write("w/y/z/b.yaml", "\n"+namespace("b")) // and still watched
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "w/y/z/b.yaml:2"})

	w.must(os.RemoveAll(w.path("w")))
	w.wants(map[string]string{"Namespace a": "a.yaml:1"})
	w.write("w/c.yaml", namespace("c")) // created again
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace c": "w/c.yaml:1"})
	w.write("w/c.yaml", "\n"+namespace("c"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace c": "w/c.yaml:2"})

	w.must(os.RemoveAll(w.path("w"))) // a file takes the name of a folder, and back
	w.write("w", "x")
	w.must(os.Remove(w.path("w")))
	w.write("w/d.yaml", namespace("d"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace d": "w/d.yaml:1"})
}

// TestKubelet: a mounted ConfigMap changes all its files by one rename.
func TestKubelet(t *testing.T) {
	t.Parallel()
	w := prepare(t, nil)
	mount := func(version string, files map[string]string) {
		for name, text := range files {
			w.must(os.MkdirAll(filepath.Dir(w.path("m/.."+version+"/"+name)), 0o755))
			w.must(os.WriteFile(w.path("m/.."+version+"/"+name), []byte(text), 0o644))
		}
		w.must(os.Symlink(".."+version, w.path("m/..data_tmp")))
		w.must(os.Rename(w.path("m/..data_tmp"), w.path("m/..data")))
	}
	mount("2026_1", map[string]string{"a.yaml": service("a", 1), "b.yaml": service("b", 1), "sub/c.yaml": service("c", 1)})
	for _, name := range []string{"a.yaml", "b.yaml", "sub"} {
		w.must(os.Symlink("..data/"+name, w.path("m/"+name)))
	}
	w.run()
	w.wants(map[string]string{"Service n/a": "m/a.yaml:1 port 1", "Service n/b": "m/b.yaml:1 port 1", "Service n/c": "m/sub/c.yaml:1 port 1"})

	for i := 2; i < 20; i++ {
		mount(fmt.Sprintf("2026_%d", i), map[string]string{"a.yaml": service("a", i), "b.yaml": service("b", i), "sub/c.yaml": service("c", i)})
		w.must(os.RemoveAll(w.path(fmt.Sprintf("m/..2026_%d", i-1))))
		w.wants(map[string]string{
			"Service n/a": fmt.Sprintf("m/a.yaml:1 port %d", i), "Service n/b": fmt.Sprintf("m/b.yaml:1 port %d", i), "Service n/c": fmt.Sprintf("m/sub/c.yaml:1 port %d", i),
		})
	}
	for _, b := range w.seen() {
		if strings.Contains(b, "-") {
			t.Errorf("an object went during a swap: %q", w.seen())
		}
	}
	mount("2026_x", map[string]string{"a.yaml": service("a", 99), "sub/c.yaml": service("c", 99)}) // b is gone
	w.wants(map[string]string{"Service n/a": "m/a.yaml:1 port 99", "Service n/c": "m/sub/c.yaml:1 port 99"})
	w.must(os.Remove(w.path("m/b.yaml")))
	w.problems()
}

func TestSymlinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x.yaml"), []byte(namespace("outside")), 0o644); err != nil {
		t.Fatal(err)
	}
	w := start(t, map[string]string{"real/a.txt": namespace("a"), "README": "x"})
	w.must(os.Symlink("real/a.txt", w.path("inside.yaml")))
	w.must(os.Symlink(filepath.Join(outside, "x.yaml"), w.path("outside.yaml")))
	w.must(os.Symlink(outside, w.path("outside")))
	w.must(os.Symlink("../README", w.path("readme")))
	w.must(os.Symlink("nothing", w.path("dangling.yaml")))
	w.must(os.Symlink("real", w.path("linked")))
	w.must(os.Symlink(".", w.path("loop")))
	w.must(os.Symlink("self.yaml", w.path("self.yaml")))
	w.wants(map[string]string{"Namespace a": "inside.yaml:1"})
	w.problems(
		"dangling.yaml:0 : the symlink points to nothing",
		"linked:0 : the symlink to a folder is not followed: only kubelet's form ..data/NAME is",
		"loop:0 : the symlink to a folder is not followed: only kubelet's form ..data/NAME is",
		"outside:0 : the symlink is not followed: links may not leave the directory",
		"outside.yaml:0 : the symlink is not followed: links may not leave the directory",
		"self.yaml:0 : the symlink is not followed: too many levels of symbolic links",
	)
	for _, name := range []string{"dangling.yaml", "linked", "loop", "outside", "outside.yaml", "self.yaml", "inside.yaml"} {
		w.must(os.Remove(w.path(name)))
	}
	w.problems()
	w.wants(map[string]string{})
}

// TestDirectoryReplaced: another directory with the same name is read.
func TestDirectoryReplaced(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": namespace("a"), "sub/b.yaml": namespace("b")})
	w.must(os.Rename(w.dir, w.dir+".old"))
	w.until("directory gone", func() bool {
		return len(w.shown()) == 1 && strings.HasPrefix(w.shown()[0], ".:0 : the directory is gone; its objects stay in use until it is back")
	})
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "sub/b.yaml:1"})
	w.must(os.MkdirAll(filepath.Join(w.dir+".new", "sub"), 0o755))
	w.must(os.WriteFile(filepath.Join(w.dir+".new", "sub", "b.yaml"), []byte("\n"+namespace("b")), 0o644))
	w.must(os.Rename(w.dir+".new", w.dir))
	w.wants(map[string]string{"Namespace b": "sub/b.yaml:2"})
	w.problems()
	w.write("sub/b.yaml", namespace("b")) // and is watched
	w.wants(map[string]string{"Namespace b": "sub/b.yaml:1"})
}

// TestMovedAwayAndBack: changes are seen after a move away and back, although a move
// ends the watch.
func TestMovedAwayAndBack(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{".", "sub", "sub/deeper"} {
		for _, elsewhere := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s elsewhere %t", folder, elsewhere), func(t *testing.T) {
				t.Parallel()
				file := path.Join(folder, "a.yaml")
				w := start(t, map[string]string{file: service("a", 1)})
				away := w.path(folder) + ".away"
				if elsewhere {
					away = filepath.Join(t.TempDir(), "away")
				}
				for i := range 5 {
					w.must(os.Rename(w.path(folder), away))
					w.must(os.Rename(away, w.path(folder)))
					w.write(file, service("a", i+1)) // the first may be found by looking again
					w.wants(map[string]string{"Service n/a": fmt.Sprintf("%s:1 port %d", file, i+1)})
					w.write(file, service("a", i+100)) // this one by its event alone
					w.wants(map[string]string{"Service n/a": fmt.Sprintf("%s:1 port %d", file, i+100)})
				}
				w.problems()
			})
		}
	}
}

// TestRenamedFilesAreNeverGone: objects of a file that is renamed during a listing, so
// that both of its names are missed, are not removed.
func TestRenamedFilesAreNeverGone(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 50 {
		files[fmt.Sprintf("other-%d.yaml", i)] = namespace(fmt.Sprintf("other-%d", i))
	}
	names := [8][2]string{}
	for i := range names {
		names[i] = [2]string{fmt.Sprintf("a%d.yaml", i), fmt.Sprintf("z%d.yaml", i)}
		files[names[i][0]] = service(fmt.Sprintf("s%d", i), 80)
	}
	w := start(t, files)
	for round := range 300 {
		for _, n := range names {
			w.must(os.Rename(w.path(n[round%2]), w.path(n[1-round%2])))
		}
		if round%10 == 0 {
			w.barrier()
		}
	}
	w.barrier()
	for _, b := range w.seen() {
		if strings.Contains(b, "-Service") {
			t.Errorf("a file was renamed, and its object went: %s", b)
		}
	}
}

// TestStorm: after many random changes, exactly the existing objects are delivered.
func TestStorm(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	want := map[string]string{}
	for i := range 400 {
		folder, name := fmt.Sprintf("d%d", i%7), fmt.Sprintf("f%d", i%31)
		file := folder + "/" + name + ".yaml"
		object := "Service n/" + folder + "-" + name
		switch i % 5 {
		case 0, 1, 2:
			w.write(file, service(folder+"-"+name, i+1))
			want[object] = fmt.Sprintf("%s:1 port %d", file, i+1)
		case 3:
			_ = os.Remove(w.path(file))
			delete(want, object)
		case 4:
			if i%20 == 4 {
				w.must(os.RemoveAll(w.path(folder)))
				maps.DeleteFunc(want, func(o, _ string) bool { return strings.HasPrefix(o, "Service n/"+folder+"-") })
			}
		}
	}
	w.wants(want)
	w.problems()
}
