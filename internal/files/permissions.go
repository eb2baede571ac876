package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckSecret returns an error if ReadSecret would refuse the key file path because
// other users have access to it.
func CheckSecret(path string) error {
	s, err := findSecret(path)
	if errors.Is(err, errLink) {
		return errLink // the caller names the place
	}
	if err != nil {
		return err
	}
	info, err := s.lstat()
	if err = errors.Join(err, s.in.Close()); err != nil {
		return err
	}
	return checkOwner(info, s.mounted)
}

// CheckReplaceable returns an error if other users could replace the key file path,
// because they may write to its directory. Sticky directories and mounted Secrets
// are safe.
func CheckReplaceable(path string) error {
	s, err := findSecret(path)
	if err != nil {
		return err
	}
	info, err := s.in.Stat(".")
	if err = errors.Join(err, s.in.Close()); err != nil {
		return err
	}
	if open := info.Mode().Perm() & 0o022; open == 0 || s.mounted || info.Mode()&fs.ModeSticky != 0 {
		return nil
	}
	return fmt.Errorf("the mode %04o of its directory lets others write to it", info.Mode().Perm())
}

// CheckDirectory returns an error if other users could replace the files of the
// directory dir.
func CheckDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	uid, _ := owner(info)
	const root = 0
	switch {
	case !info.IsDir():
		return errors.New("it is not a directory")
	case uid == -1:
		return errNoOwner
	case uid != os.Geteuid() && uid != root:
		return fmt.Errorf("it belongs to user %d, not to user %d who writes there; chown it or name another", uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("its mode %04o lets others write to it; run chmod 700 on it or name another", info.Mode().Perm())
	}
	return nil
}

// CheckOutput returns an error if other users could replace the directory dir, which need not exist,
// or the files in it. Commands that write keys and tokens for people call it; a process in a pod
// writes to volumes, which the group of the pod may write.
func CheckOutput(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for checked := 0; checked < 2; dir = filepath.Dir(dir) { // it and its folder, as far as they exist
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err == nil {
			err = checkFolder(info, os.Geteuid(), os.Getegid())
		}
		if err != nil {
			return fmt.Errorf("refuse to write keys and tokens below %s: %w", dir, err)
		}
		checked++
	}
	return nil
}

// checkFolder returns an error if users other than self and root may replace files of a folder. In a
// sticky folder, only the owner of a file may.
func checkFolder(info fs.FileInfo, self, group int) error {
	const root = 0
	uid, gid := owner(info)
	shared := info.Mode().Perm() & 0o022
	if self != root && gid == self && gid == group { // the private group of the user
		shared &^= 0o020
	}
	switch {
	case !info.IsDir():
		return errors.New("it is not a directory")
	case uid == -1:
		return errNoOwner
	case uid != self && uid != root:
		return fmt.Errorf("it belongs to user %d, not to user %d who writes there; chown it or name another", uid, self)
	case shared != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("its mode %04o lets others replace files in it; run chmod go-w on it or name another", info.Mode().Perm())
	}
	return nil
}

func checkOwner(info fs.FileInfo, mounted bool) error {
	uid, _ := owner(info)
	if uid == -1 {
		return errNoOwner
	}
	return checkSecret(info.Mode(), uid, os.Geteuid(), mounted)
}

func checkSecret(mode fs.FileMode, owner, self int, mounted bool) error {
	const root = 0
	switch {
	case mounted && owner == root:
		return nil
	case owner != self && owner != root:
		return fmt.Errorf("it belongs to user %d, not to user %d who reads it; chown it", owner, self)
	case mode.Perm()&0o077 != 0:
		return fmt.Errorf("its mode %04o gives other users access; run chmod 600 on it", mode.Perm())
	}
	return nil
}
