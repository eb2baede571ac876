package files

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain also runs the writer processes that tests kill.
func TestMain(m *testing.M) {
	switch dir := os.Getenv("FILES_TEST_DIR"); os.Getenv("FILES_TEST_WRITER") {
	case "loop":
		syscall.Umask(0) // no help from it
		fmt.Println("ready")
		for i := 0; ; i++ {
			if err := WriteDir(dir, generation(fmt.Sprint("child ", i)), Options{Force: true}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	case "full":
		// The limit on file sizes stands for a full disk.
		signal.Ignore(syscall.SIGXFSZ)
		limit := syscall.Rlimit{Cur: 4, Max: 4}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			panic(err)
		}
		err := WriteDir(dir, generation("new"), Options{Force: true})
		os.Exit(map[bool]int{true: 0, false: 1}[errors.Is(err, syscall.EFBIG)])
	}
	os.Exit(m.Run())
}

func generation(text string) []File {
	return []File{
		{Name: "cert.pem", Data: []byte(text + " of the set"), Mode: Public},
		{Name: "key.pem", Data: []byte(text + " of the set"), Mode: Secret},
		{Name: "root.pem", Data: []byte(text + " of the set"), Mode: Public},
	}
}

// read returns the text of the generation in dir, or "" when there is none. It
// fails the test on a mixture, a partial set and wrong modes.
func read(t *testing.T, dir string) string {
	t.Helper()
	got := map[string]int{}
	for _, f := range generation("") {
		data, err := os.ReadFile(filepath.Join(dir, f.Name))
		if errors.Is(err, fs.ErrNotExist) {
			got["absent"]++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(string(data), " of the set")]++
		if info, err := os.Stat(filepath.Join(dir, f.Name)); err != nil || info.Mode() != f.Mode {
			t.Fatalf("%s: %v, %v", f.Name, info, err)
		}
	}
	if len(got) != 1 {
		t.Fatalf("the directory is a mixture: %v", got)
	}
	for text := range got {
		if text != "absent" {
			return text
		}
	}
	return ""
}

// layouts runs a test in a directory that WriteDir exchanges and in one that it
// cannot exchange.
func layouts(t *testing.T, test func(t *testing.T, dir string, links bool)) {
	for name, links := range map[string]bool{"swap": false, "links": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "set")
			put(t, filepath.Join(dir, "other"), "kept", 0o640)
			if links {
				put(t, filepath.Join(dir, "folder", "file"), "kept", 0o640)
			}
			test(t, dir, links)
		})
	}
}

// want checks that dir holds one whole generation and its parent no leftovers.
func want(t *testing.T, dir, text string, links bool) {
	t.Helper()
	if got := read(t, dir); got != text {
		t.Errorf("the directory has %q, want %q", got, text)
	}
	names := func(dir string) (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if ours(e.Name(), versionPrefix) {
				names = append(names, "a version")
				continue
			}
			names = append(names, e.Name())
		}
		return names
	}
	inside := []string{"cert.pem", "key.pem", "other", "root.pem"}
	if links {
		inside = []string{dataLink, "a version", "cert.pem", "folder", "key.pem", "other", "root.pem"}
	}
	if diff := cmp.Diff(inside, names(dir)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"set"}, names(filepath.Dir(dir))); diff != "" {
		t.Error(diff)
	}
	if got := tree(t, dir)["other"]; got != "-rw-r----- kept" {
		t.Errorf("the other file is %q", got)
	}
}

func TestWriteDir(t *testing.T) {
	layouts(t, func(t *testing.T, dir string, links bool) {
		if err := os.Chmod(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := WriteDir(dir, generation("first"), Options{}); err != nil {
			t.Fatal(err)
		}
		want(t, dir, "first", links)

		err := WriteDir(dir, generation("second"), Options{})
		wantError(t, err, filepath.Join(dir, "cert.pem")+": file already exists; use --force")
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not fs.ErrExist", err)
		}
		want(t, dir, "first", links)

		for _, text := range []string{"second", "third"} {
			if err := WriteDir(dir, generation(text), Options{Force: true}); err != nil {
				t.Fatal(err)
			}
			want(t, dir, text, links)
		}
		// A set of less leaves the others of the set before.
		if err := WriteDir(dir, generation("fourth")[:1], Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "key.pem")); err != nil || string(data) != "third of the set" {
			t.Errorf("the key is %q, %v", data, err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("the directory has %v, %v", info.Mode(), err)
		}
		if _, err := ReadSecret(filepath.Join(dir, "key.pem"), 100); err != nil {
			t.Error(err)
		}
	})
}

func TestWriteDirNew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := WriteDir(dir, generation("new"), Options{}); err != nil {
		t.Fatal(err)
	}
	if read(t, dir) != "new" {
		t.Error("it is not written")
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("folder %s has mode %v, %v", d, info.Mode(), err)
		}
	}
}

// TestWriteDirWorkingDirectory: the working directory stays the same directory.
func TestWriteDirWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, text := range []string{"first", "second"} {
		if err := WriteDir(".", generation(text), Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		if got := read(t, "."); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

// TestWriteDirConverts: plain files become links, also after a process that was
// killed half-way.
func TestWriteDirConverts(t *testing.T) {
	dir := t.TempDir()
	for _, f := range generation("old") {
		put(t, filepath.Join(dir, f.Name), string(f.Data), f.Mode)
	}
	put(t, filepath.Join(dir, "folder", "file"), "kept", 0o640)
	version := versionPrefix + strings.Repeat("0f", tokenBytes)
	put(t, filepath.Join(dir, version, "cert.pem"), "old of the set", Public)
	link(t, version, filepath.Join(dir, dataLink))
	if err := os.Remove(filepath.Join(dir, "cert.pem")); err != nil {
		t.Fatal(err)
	}
	link(t, filepath.Join(dataLink, "cert.pem"), filepath.Join(dir, "cert.pem"))
	if got := read(t, dir); got != "old" {
		t.Fatal(got)
	}
	if err := WriteDir(dir, generation("new"), Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir); got != "new" {
		t.Error(got)
	}
}

func TestWriteDirsAllOrNone(t *testing.T) {
	parent := t.TempDir()
	put(t, filepath.Join(parent, "c2", "key.pem"), "precious", 0o600)
	dirs := []Dir{{"c1", generation("new")}, {"c2", generation("new")}}
	wantError(t, WriteDirs(parent, dirs, Options{}), "c2/key.pem: file already exists")
	if diff := cmp.Diff(map[string]string{"c2/key.pem": "-rw------- precious"}, tree(t, parent)); diff != "" {
		t.Error(diff)
	}

	// The second cannot be shown once the first is.
	p, err := openPlace(parent)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.stage(Dir{"c1", generation("new")}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{s.commit, s.undo, s.finish, p.close} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"c2/key.pem": "-rw------- precious"}, tree(t, parent)); diff != "" {
		t.Error(diff)
	}
	if err := WriteDirs(parent, dirs, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	if read(t, filepath.Join(parent, "c1")) != "new" || read(t, filepath.Join(parent, "c2")) != "new" {
		t.Error("they are not written")
	}
}

// TestWriteDirUndo: a commit that is undone leaves the old set.
func TestWriteDirUndo(t *testing.T) {
	layouts(t, func(t *testing.T, dir string, links bool) {
		if err := WriteDir(dir, generation("old"), Options{}); err != nil {
			t.Fatal(err)
		}
		p, err := openPlace(filepath.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.stage(Dir{"set", generation("new")}, Options{Force: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []func() error{s.commit, s.undo, s.finish, p.close} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		want(t, dir, "old", links)
	})
}

func TestNoSymlinkIsFollowed(t *testing.T) {
	parent := t.TempDir()
	put(t, filepath.Join(parent, "real", "kept"), "kept", 0o644)
	put(t, filepath.Join(parent, "victim"), "kept", 0o644)
	link(t, "real", filepath.Join(parent, "link"))
	put(t, filepath.Join(parent, "set", "other"), "kept", 0o644)
	link(t, "../victim", filepath.Join(parent, "set", "key.pem"))
	kubelet(t, filepath.Join(parent, "mounted"), "..2026_01_01_00_00_00.1")
	before := tree(t, parent)
	force := Options{Force: true}
	for name, err := range map[string]error{
		"link: it is a symbolic link":           WriteDir(filepath.Join(parent, "link"), generation("new"), force),
		"link: it is a symbolic":                WriteDirs(filepath.Join(parent, "link"), []Dir{{"c1", generation("new")}}, force),
		"key.pem: it is a symbolic link":        WriteDir(filepath.Join(parent, "set"), generation("new"), force),
		"mounted: it is a mounted Secret":       WriteDir(filepath.Join(parent, "mounted"), generation("new"), force),
		"something that is not a directory":     WriteDir(filepath.Join(parent, "victim"), generation("new"), force),
		`"../up" is not a name below it`:        WriteDirs(parent, []Dir{{"../up", nil}}, force),
		`"a/b" is not the name of a file in it`: WriteDir(filepath.Join(parent, "x"), []File{{Name: "a/b"}}, force),
		`"..data" is not the name of a file in`: WriteDir(filepath.Join(parent, "x"), []File{{Name: "..data"}}, force),
		"victim: not a directory":               WriteDir(filepath.Join(parent, "victim", "x"), generation("new"), force),
	} {
		wantError(t, err, name)
	}
	if diff := cmp.Diff(before, tree(t, parent)); diff != "" {
		t.Error("refused writes changed the directory:", diff)
	}
}

// TestWriteDirSweepsOnlyOurs: files of others with similar names stay.
func TestWriteDirSweepsOnlyOurs(t *testing.T) {
	parent := t.TempDir()
	left := ".set" + mark + strings.Repeat("ab", tokenBytes)
	put(t, filepath.Join(parent, left, "key.pem"), "of a killed run", 0o600)
	kept := []string{".set.meshctl-notes/x", ".set.meshctl-/x", "set.meshctl-" + strings.Repeat("ab", tokenBytes) + "/x"}
	for _, name := range kept {
		put(t, filepath.Join(parent, name), "kept", 0o600)
	}
	if err := WriteDir(filepath.Join(parent, "set"), generation("new"), Options{}); err != nil {
		t.Fatal(err)
	}
	got := tree(t, parent)
	for _, name := range kept {
		if got[name] == "" {
			t.Errorf("%s is gone", name)
		}
	}
	if len(got) != len(kept)+3 {
		t.Errorf("left: %v", got)
	}
}

func TestWriteDirWaitsForOthers(t *testing.T) {
	parent := t.TempDir()
	p, err := openPlace(parent)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := tryPlace(parent); second != nil || err != nil {
		t.Fatalf("two have the lock: %v, %v", second, err)
	}
	done := make(chan error)
	go func() { done <- WriteDir(filepath.Join(parent, "set"), generation("new"), Options{}) }()
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestWriteDirFull: a full disk leaves the old set whole and nothing else.
func TestWriteDirFull(t *testing.T) {
	layouts(t, func(t *testing.T, dir string, links bool) {
		if err := WriteDir(dir, generation("old"), Options{}); err != nil {
			t.Fatal(err)
		}
		if out, err := writer(t, "full", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		want(t, dir, "old", links)
	})
}

func writer(t *testing.T, kind, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "FILES_TEST_WRITER="+kind, "FILES_TEST_DIR="+dir)
	return cmd
}

// TestWriteDirKilled: a writer that is killed at any moment leaves a whole set, and
// the next one removes its leftovers.
func TestWriteDirKilled(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 20
	}
	layouts(t, func(t *testing.T, dir string, links bool) {
		traces := 0
		for i := range kills / 2 {
			fresh := i%2 == 0 // the first set is written when the kill comes
			if fresh {
				for _, name := range []string{dataLink, "cert.pem", "key.pem", "root.pem"} {
					if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			cmd := writer(t, "loop", dir)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
				t.Fatalf("the writer says %q, %v", line, err)
			}
			time.Sleep(rand.N(20 * time.Millisecond)) // any moment of a write
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Fatal("the writer ended by itself")
			}
			old := fmt.Sprint("parent ", i-1)
			if fresh {
				old = ""
			}
			if got := read(t, dir); !strings.HasPrefix(got, "child ") && got != old {
				t.Fatalf("after the kill: %q", got)
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".set"+mark+"*")); err != nil || len(left) > 0 {
				traces++
			}
			if left, err := filepath.Glob(filepath.Join(dir, versionPrefix+"*")); err != nil || len(left) > 1 {
				traces++
			}
			for name, file := range tree(t, filepath.Dir(dir)) {
				if filepath.Base(name) == "key.pem" && !strings.HasPrefix(file, "-rw------- ") && !strings.HasPrefix(file, "-> ") {
					t.Fatalf("%s was open to others: %s", name, file)
				}
			}
			text := fmt.Sprint("parent ", i)
			if err := WriteDir(dir, generation(text), Options{Force: true}); err != nil {
				t.Fatal(err)
			}
			want(t, dir, text, links)
		}
		if traces == 0 {
			t.Error("no writer was killed within a write")
		}
		t.Logf("%d of %d writers left traces", traces, kills/2)
	})
}

func TestWriteSweeps(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, ".token"+mark+strings.Repeat("ab", tokenBytes)), "of a killed run", 0o600)
	put(t, filepath.Join(dir, ".token.tmp"), "kept", 0o600)
	if err := Write(filepath.Join(dir, "token"), []byte("new"), Secret); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"token": "-rw------- new", ".token.tmp": "-rw------- kept"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestSweepsAll: each writer removes the leftovers of killed writers of any set, and
// nothing that only looks like one.
func TestSweepsAll(t *testing.T) {
	token := strings.Repeat("ab", tokenBytes)
	kept := []string{
		"..meshctl-" + token + "/key.pem", // a version that may be shown
		".c2" + mark + "short/key.pem",
		"c2" + mark + token + "/key.pem",
	}
	for name, write := range map[string]func(parent string) error{
		"WriteDir":  func(p string) error { return WriteDir(filepath.Join(p, "c1"), generation("new"), Options{Force: true}) },
		"WriteDirs": func(p string) error { return WriteDirs(p, []Dir{{"c1", generation("new")}}, Options{Force: true}) },
		"Write":     func(p string) error { return Write(filepath.Join(p, "token"), nil, Secret) },
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			for _, k := range kept {
				put(t, filepath.Join(parent, k), "kept", 0o600)
			}
			left := []string{".c2" + mark + token, ".roots.pem" + mark + token}
			for _, l := range left {
				put(t, filepath.Join(parent, l, "key.pem"), "of a killed run", 0o600)
			}
			if name != "Write" {
				left = append(left, "c1/.token"+mark+token)
				put(t, filepath.Join(parent, left[2]), "of a killed run", 0o600)
			}
			if err := write(parent); err != nil {
				t.Fatal(err)
			}
			for _, l := range left {
				if _, err := os.Lstat(filepath.Join(parent, l)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", l, err)
				}
			}
			for _, k := range kept {
				if _, err := os.Lstat(filepath.Join(parent, k)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
