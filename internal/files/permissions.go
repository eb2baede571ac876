package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
