package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree returns the tree below dir: files with their content, links with their
// target, both with their mode.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			got[name] = "-> " + target
			return err
		}
		data, err := os.ReadFile(path)
		got[name] = info.Mode().String() + " " + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func put(t *testing.T, path, data string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want one with %q", err, want)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "old"), "old", 0o644)
	for name, mode := range map[string]fs.FileMode{"old": Secret, "new": Public} {
		if err := Write(filepath.Join(dir, name), []byte("data"), mode); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"old": "-rw------- data", "new": "-rw-r--r-- data"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "target"), "kept", 0o644)
	link(t, "target", filepath.Join(dir, "link"))
	link(t, "nowhere", filepath.Join(dir, "dangling"))
	put(t, filepath.Join(dir, "folder", "file"), "kept", 0o644)
	before := tree(t, dir)

	for name, want := range map[string]string{
		"link":         "is a symbolic link",
		"dangling":     "is a symbolic link",
		"folder":       "not a regular file",
		"missing/file": "no such file",
	} {
		wantError(t, Write(filepath.Join(dir, name), []byte("data"), Secret), want)
		if strings.Contains(name, "/") {
			continue // WriteAll makes folders
		}
		wantError(t, WriteAll(dir, []File{{Name: name}}), want)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Error("refused writes changed the directory:", diff)
	}
}

func TestWriteAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	set := []File{
		{Name: "cert.pem", Data: []byte("cert"), Mode: Public},
		{Name: "sub/key.pem", Data: []byte("key"), Mode: Secret},
	}
	if err := WriteAll(dir, set); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cert.pem": "-rw-r--r-- cert", "sub/key.pem": "-rw------- key"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
	for _, d := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "sub")} {
		info, err := os.Stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("folder %s has mode %v", d, info.Mode())
		}
	}
}

func TestWriteAllKeepsWhatExists(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "sub", "key.pem"), "precious", 0o600)
	set := []File{
		{Name: "cert.pem", Data: []byte("cert"), Mode: Public},
		{Name: "sub/key.pem", Data: []byte("key"), Mode: Secret},
	}
	before := tree(t, dir)
	err := WriteAll(dir, set)
	wantError(t, err, filepath.Join(dir, "sub", "key.pem"))
	wantError(t, err, "use --force")
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v is not fs.ErrExist", err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestWriteAllUndoes: a set that fails half-way, here because it names one file
// twice, leaves none of its files and no temporary file.
func TestWriteAllUndoes(t *testing.T) {
	dir := t.TempDir()
	set := []File{{Name: "first", Mode: Public}, {Name: "second", Mode: Public}, {Name: "first", Mode: Public}}
	err := WriteAll(dir, set)
	if !errors.Is(err, fs.ErrExist) {
		t.Fatalf("error is %v", err)
	}
	if diff := cmp.Diff(map[string]string{}, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestWriteAllStaysBelow(t *testing.T) {
	for _, name := range []string{"../up", "/etc/abs", "", "a/../../b"} {
		wantError(t, WriteAll(t.TempDir(), []File{{Name: name}}), "not a name below it")
	}
}

// TestWriteFileNeverReplaces: a file of another process stays, even if it appears
// after the check for existing files.
func TestWriteFileNeverReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "path")
	put(t, path, "of another process", 0o600)
	if err := writeFile(path, []byte("new"), Secret, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got error %v, want fs.ErrExist", err)
	}
	if diff := cmp.Diff(map[string]string{"path": "-rw------- of another process"}, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	put(t, path, "12345", 0o644)
	link(t, "file", filepath.Join(dir, "link"))

	for _, p := range []string{path, filepath.Join(dir, "link")} {
		got, err := Read(p, 5)
		if err != nil || string(got) != "12345" {
			t.Errorf("Read(%s) = %q, %v", p, got, err)
		}
	}
	_, err := Read(path, 4)
	wantError(t, err, "more than the 4 bytes")
	_, err = Read(dir, 4)
	wantError(t, err, "not a regular file")
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Read(pipe, 4) // must not wait for a writer
	wantError(t, err, "not a regular file")
	_, err = Read(filepath.Join(dir, "none"), 4)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "good"), "key", 0o600)
	put(t, filepath.Join(dir, "stricter"), "key", 0o400)
	put(t, filepath.Join(dir, "group"), "key", 0o640)
	put(t, filepath.Join(dir, "others"), "key", 0o604)
	put(t, filepath.Join(dir, "long"), "0123456789", 0o600)
	link(t, "good", filepath.Join(dir, "link"))
	link(t, "..data/elsewhere", filepath.Join(dir, "half"))

	for _, name := range []string{"good", "stricter"} {
		got, err := ReadSecret(filepath.Join(dir, name), 8)
		if err != nil || string(got) != "key" {
			t.Errorf("ReadSecret(%s) = %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]string{
		"group":  "its mode 0640 gives other users access; run chmod 600",
		"others": "its mode 0604",
		"link":   "is a symbolic link",
		"half":   "is a symbolic link",
		"long":   "more than the 8 bytes",
		"none":   "no such file",
	} {
		_, err := ReadSecret(filepath.Join(dir, name), 8)
		wantError(t, err, want)
		wantError(t, err, filepath.Join(dir, name))
	}
}

// kubelet writes a Secret in the layout of a mounted volume.
func kubelet(t *testing.T, dir, version string) {
	t.Helper()
	put(t, filepath.Join(dir, "..2026_01_01_00_00_00.1", "key"), "key", 0o644)
	link(t, version, filepath.Join(dir, "..data"))
	link(t, filepath.Join("..data", "key"), filepath.Join(dir, "key"))
}

func TestReadSecretMounted(t *testing.T) {
	dir := t.TempDir()
	kubelet(t, dir, "..2026_01_01_00_00_00.1")
	got, err := ReadSecret(filepath.Join(dir, "key"), 8)
	if os.Geteuid() == 0 {
		if err != nil || string(got) != "key" {
			t.Errorf("ReadSecret = %q, %v", got, err)
		}
	} else {
		// A volume is root's; this one is not.
		wantError(t, err, "its mode 0644")
	}

	outside := t.TempDir()
	kubelet(t, outside, filepath.Join("..", filepath.Base(dir)))
	_, err = ReadSecret(filepath.Join(outside, "key"), 8)
	wantError(t, err, "is a symbolic link")
}

// TestReadSecretLeavesNoDirectory: links out of the layout of a mounted Secret are refused.
func TestReadSecretLeavesNoDirectory(t *testing.T) {
	elsewhere := t.TempDir()
	put(t, filepath.Join(elsewhere, "key"), "key", 0o644)
	for name, lead := range map[string]func(dir string){
		"the version is a link": func(dir string) { link(t, elsewhere, filepath.Join(dir, "..v")) },
		"the version is a link inside": func(dir string) {
			put(t, filepath.Join(dir, "other", "key"), "key", 0o644)
			link(t, "other", filepath.Join(dir, "..v"))
		},
		"the file is a link": func(dir string) {
			if err := os.Mkdir(filepath.Join(dir, "..v"), 0o755); err != nil {
				t.Fatal(err)
			}
			link(t, filepath.Join(elsewhere, "key"), filepath.Join(dir, "..v", "key"))
		},
		"the file is a link inside": func(dir string) {
			put(t, filepath.Join(dir, "..v", "other"), "key", 0o600)
			link(t, "other", filepath.Join(dir, "..v", "key"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			lead(dir)
			link(t, "..v", filepath.Join(dir, "..data"))
			link(t, filepath.Join("..data", "key"), filepath.Join(dir, "key"))
			path := filepath.Join(dir, "key")
			if data, err := ReadSecret(path, 8); err == nil {
				t.Errorf("read %q", data)
			} else {
				wantError(t, err, path)
				wantError(t, err, "symbolic link")
			}
			wantError(t, CheckSecret(path), "symbolic link")
		})
	}
}

// TestCheckReplaceable: a key in a directory that others may write to is replaceable.
func TestCheckReplaceable(t *testing.T) {
	for mode, want := range map[fs.FileMode]string{
		0o700: "", 0o755: "", 0o777 | fs.ModeSticky: "",
		0o775: "the mode 0775 of its directory lets others write to it",
		0o702: "the mode 0702",
	} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "key"), "key", 0o600)
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			err := CheckReplaceable(filepath.Join(dir, "key"))
			if want != "" {
				wantError(t, err, want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	mounted := t.TempDir()
	kubelet(t, mounted, "..2026_01_01_00_00_00.1")
	for _, dir := range []string{mounted, filepath.Join(mounted, "..2026_01_01_00_00_00.1")} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckReplaceable(filepath.Join(mounted, "key")); err != nil {
		t.Errorf("a mounted Secret: %v", err)
	}
}

func TestCheckSecret(t *testing.T) {
	for _, test := range []struct {
		name        string
		mode        fs.FileMode
		owner, self int
		mounted     bool
		want        string // empty: accepted
	}{
		{"own", 0o600, 1000, 1000, false, ""},
		{"of root", 0o600, 0, 1000, false, ""},
		{"of another, read by root", 0o600, 1000, 0, false, "belongs to user 1000"},
		{"of another", 0o600, 1001, 1000, false, "belongs to user 1001"},
		{"open to the group", 0o640, 0, 1000, false, "mode 0640"},
		{"mounted", 0o644, 0, 1337, true, ""},
		{"mounted for a group", 0o440, 0, 1337, true, ""},
		{"like mounted, of another", 0o644, 1001, 1000, true, "belongs to user 1001"},
		{"like mounted, own and open", 0o644, 1000, 1000, true, "mode 0644"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkSecret(test.mode, test.owner, test.self, test.mounted)
			if test.want != "" {
				wantError(t, err, test.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
