package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestCheckOutput: others must not be able to replace an output directory or what is in it.
func TestCheckOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		mode fs.FileMode
		want string
	}{
		"private": {0o700, ""}, "readable": {0o755, ""}, "sticky": {0o777 | fs.ModeSticky, ""},
		"others": {0o757, "its mode 0757 lets others replace files"}, "all": {0o777, "its mode 0777 lets others"}, "setgid": {0o777 | fs.ModeSetgid, "its mode 0777 lets others"},
	} {
		at := filepath.Join(dir, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at, tt.mode); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, "link-"+name)
		if err := os.Symlink(at, link); err != nil {
			t.Fatal(err)
		}
		for _, out := range []string{at, filepath.Join(at, "new"), filepath.Join(at, "a", "b", "new"), link} {
			err := CheckOutput(out)
			if tt.want == "" && err != nil {
				t.Errorf("%s: %v", out, err)
			} else if tt.want != "" {
				wantError(t, err, tt.want)
			}
		}
	}
	put(t, filepath.Join(dir, "file"), "", 0o600)
	wantError(t, CheckOutput(filepath.Join(dir, "file")), "is not a directory")
	inside := filepath.Join(dir, "all", "mine")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, CheckOutput(inside), "below "+filepath.Join(dir, "all"))
}

// folder is the fs.FileInfo of a directory.
type folder struct {
	fs.FileInfo
	mode     fs.FileMode
	uid, gid uint32
}

func (f folder) Mode() fs.FileMode  { return f.mode }
func (f folder) IsDir() bool        { return true }
func (f folder) ModTime() time.Time { return time.Time{} }
func (f folder) Sys() any           { return &syscall.Stat_t{Uid: f.uid, Gid: f.gid} }

// TestFoldersOfOthers: a folder of another user is refused, and one that a group may write unless
// the group is the user's private one.
func TestFoldersOfOthers(t *testing.T) {
	t.Parallel()
	const self, other = 1000, 1001
	for name, tt := range map[string]struct {
		folder
		group int
		works bool
	}{
		"own":             {folder{mode: 0o755, uid: self, gid: self}, self, true},
		"root's":          {folder{mode: 0o755}, self, true},
		"another's":       {folder{mode: 0o700, uid: other, gid: other}, self, false},
		"private group":   {folder{mode: 0o775, uid: self, gid: self}, self, true},
		"another group":   {folder{mode: 0o775, uid: self, gid: 50}, self, false},
		"common group":    {folder{mode: 0o775, uid: self, gid: self}, 100, false},
		"others":          {folder{mode: 0o777, uid: self, gid: self}, self, false},
		"root's, sticky":  {folder{mode: 0o777 | fs.ModeSticky}, self, true},
		"other's, sticky": {folder{mode: 0o777 | fs.ModeSticky, uid: other}, self, false},
	} {
		if err := checkFolder(tt.folder, self, tt.group); (err == nil) != tt.works {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkFolder(folder{mode: 0o775}, 0, 0); err == nil {
		t.Error("root has no private group")
	}
}
