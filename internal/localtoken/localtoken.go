// Package localtoken lets commands prove to a control plane that they run on the same
// machine as the same user. The control plane keeps a random token in a file that
// only its user can read, named after the address of its status pages.
package localtoken

import (
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/files"
)

// Token is a secret that prints only to its file. The zero Token matches nothing.
type Token struct{ text func() string }

// Is reports whether the text is the token.
func (t Token) Is(text string) bool {
	return t.text != nil && subtle.ConstantTimeCompare([]byte(t.text()), []byte(text)) == 1
}

// String implements fmt.Stringer.
func (t Token) String() string { return "[token]" }

// LogValue implements slog.LogValuer.
func (t Token) LogValue() slog.Value { return slog.StringValue("[token]") }

// Directories returns the candidates for the directory of tokens: below the user's
// session directory, then below the user's state directory. There are none if the
// environment names neither.
func Directories(lookup func(string) (string, bool)) []string {
	var out []string
	for _, in := range [][2]string{
		{"XDG_RUNTIME_DIR", "meshctl"}, {"XDG_STATE_HOME", "meshctl/run"}, {"HOME", ".local/state/meshctl/run"},
	} {
		if dir, _ := lookup(in[0]); filepath.IsAbs(dir) {
			out = append(out, filepath.Join(dir, in[1]))
		}
	}
	return out
}

const suffix = ".token"

// nameOf returns the file name for the address of a listener. All unspecified
// addresses share one name per port.
func nameOf(ip netip.Addr, port uint16) string {
	if ip = ip.Unmap(); ip.IsUnspecified() || !ip.IsValid() {
		return fmt.Sprintf("debug-%d%s", port, suffix)
	}
	return fmt.Sprintf("debug-%s-%d%s", strings.ReplaceAll(ip.WithZone("").String(), ":", "_"), port, suffix)
}

// size is the number of random bytes in a token.
const size = 20

// Keep makes a token for the listener at an address, and keeps it in the first
// directory that it can write to. remove deletes the file. The error explains why no
// directory can be used.
func Keep(dirs []string, listener net.Addr, random io.Reader) (token Token, path string, remove func(), err error) {
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil {
		return Token{}, "", nil, fmt.Errorf("local token: %w", err)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(random, b); err != nil {
		return Token{}, "", nil, fmt.Errorf("local token: %w", err)
	}
	text := base32.StdEncoding.EncodeToString(b)
	var errs []error
	if len(dirs) == 0 {
		errs = []error{errors.New("none of XDG_RUNTIME_DIR, XDG_STATE_HOME and HOME is set")}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, nameOf(at.Addr(), at.Port()))
		if err := write(dir, path, text); err != nil {
			errs = append(errs, err)
			continue
		}
		return Token{func() string { return text }}, path, func() { drop(dir, path, text) }, nil
	}
	return Token{}, "", nil, fmt.Errorf("local token: %w; name a directory that can be written to with XDG_RUNTIME_DIR or XDG_STATE_HOME", errors.Join(errs...))
}

func write(dir, path, text string) error {
	for attempt := 1; ; attempt++ {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = files.Write(path, []byte(text+"\n"), files.Secret)
		}
		// Another control plane may have deleted the empty directory.
		if !errors.Is(err, fs.ErrNotExist) || attempt == 3 {
			return err
		}
	}
}

// drop deletes the file unless another control plane has replaced it, and the
// directories of tokens if they are empty.
func drop(dir, path, text string) {
	if now, err := files.ReadSecret(path, limit); err != nil || strings.TrimSpace(string(now)) != text {
		return
	}
	_ = os.Remove(path)
	for base := filepath.Base(dir); base == "run" || base == "meshctl"; base = filepath.Base(dir) {
		if os.Remove(dir) != nil {
			return
		}
		dir = filepath.Dir(dir)
	}
}

// limit bounds a token file, in bytes.
const limit = 1 << 10

// Read returns the token of the control plane at an address, a loopback address or
// localhost with a port. It returns the newest of several, and an empty text without
// any.
func Read(dirs []string, address string) (string, error) {
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", err
	}
	ips := []netip.Addr{{}} // all interfaces
	if host == "localhost" {
		ips = append(ips, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	} else if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	}
	var newest fs.FileInfo
	var path string
	for _, dir := range dirs {
		for _, ip := range ips {
			at := filepath.Join(dir, nameOf(ip, uint16(port)))
			if info, err := os.Lstat(at); err == nil && (newest == nil || info.ModTime().After(newest.ModTime())) {
				newest, path = info, at
			}
		}
	}
	if newest == nil {
		return "", nil
	}
	text, err := files.ReadSecret(path, limit)
	return strings.TrimSpace(string(text)), err
}

// IsLocal reports whether a host, with or without a port, names this machine: as
// localhost or by a loopback address.
func IsLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
