package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// errClosed is the error of a connection whose other end no process of this network namespace has.
var errClosed = errors.New("its other end is closed")

// Layout of the structs inet_diag_req_v2 and inet_diag_msg of <linux/inet_diag.h>.
const (
	diagByFamily      = 20 // SOCK_DIAG_BY_FAMILY
	requestSize       = 56
	requestID         = 8 // offset of the struct inet_diag_sockid in the request
	answerSize        = 72
	answerState       = 1
	answerID          = 4
	answerInode       = 68
	idDestinationPort = 2 // offsets in the struct inet_diag_sockid
	idSource          = 4
	idDestination     = 20
	idCookie          = 40
	maxAnswer         = 8 << 10
	established       = 1 // TCP_ESTABLISHED
)

// inodeOf returns the inode of the established TCP socket of this network namespace that has the
// addresses. It is an error if there is none, or if no process has the socket any more.
func inodeOf(local, remote netip.AddrPort) (uint32, error) {
	request := diagRequest(local, remote)
	kind, answer, err := askKernel(diagByFamily, request)
	if err != nil {
		return 0, fmt.Errorf("ask the kernel for a socket: %w", err)
	}
	if kind == unix.NLMSG_ERROR && len(answer) >= 4 {
		errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(answer)))
		if errno == syscall.ENOENT {
			return 0, errClosed
		}
		return 0, fmt.Errorf("ask the kernel for a socket: %w", errno)
	}
	if kind != diagByFamily || len(answer) < answerSize {
		return 0, errors.New("ask the kernel for a socket: unknown form of the answer")
	}
	inode := binary.NativeEndian.Uint32(answer[answerInode:])
	// The kernel also finds a socket that listens at the local address.
	if answer[answerState] != established || inode == 0 || !hasAddresses(answer, local, remote) {
		return 0, errClosed
	}
	return inode, nil
}

// hasAddresses reports whether an answer of the kernel is about a socket with the addresses.
func hasAddresses(answer []byte, local, remote netip.AddrPort) bool {
	id, size := answer[answerID:], net.IPv4len
	if answer[0] == unix.AF_INET6 { // which may have mapped addresses of IPv4
		size = net.IPv6len
	}
	is := func(addressAt, portAt int, want netip.AddrPort) bool {
		ip, _ := netip.AddrFromSlice(id[addressAt : addressAt+size])
		return ip.Unmap() == want.Addr().WithZone("") && binary.BigEndian.Uint16(id[portAt:]) == want.Port()
	}
	return is(idSource, 0, local) && is(idDestination, idDestinationPort, remote)
}

// diagRequest returns the struct inet_diag_req_v2 for a socket.
func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, requestSize)
	b[0], b[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		b[0] = unix.AF_INET
	}
	id := b[requestID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[idDestinationPort:], remote.Port())
	copy(id[idSource:], local.Addr().AsSlice())
	copy(id[idDestination:], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[idCookie:], ^uint64(0)) // none
	return b
}

// askKernel sends a request about sockets, and returns the answer: its type and its content.
func askKernel(kind uint16, request []byte) (answerKind uint16, answer []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	message := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(request))
	binary.NativeEndian.PutUint32(message, uint32(unix.SizeofNlMsghdr+len(request)))
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, append(message, request...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, nil, err
	}
	// The kernel has answered when Sendto returns.
	buffer := make([]byte, maxAnswer)
	n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, nil, err
	}
	if n < unix.SizeofNlMsghdr {
		return 0, nil, errors.New("the answer is too short")
	}
	return binary.NativeEndian.Uint16(buffer[4:]), buffer[unix.SizeofNlMsghdr:n], nil
}

// checkEstablished returns an error if conn is not established any more.
func checkEstablished(conn net.Conn) error {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok { // as the connections of serving.Bound
		conn = wrapped.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("it is no TCP connection, but a %T", conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return fmt.Errorf("state of the connection: %w", err)
	}
	var info *unix.TCPInfo
	var sockErr error
	err = raw.Control(func(fd uintptr) { info, sockErr = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, sockErr); err != nil {
		return fmt.Errorf("state of the connection: %w", err)
	}
	if info.State != established {
		return errClosed
	}
	return nil
}

// owns reports whether a process of the group has the socket with the inode. It is an error if the
// file system proc does not show the processes of the group.
func owns(proc string, group int, inode uint32) (bool, error) {
	if self, err := os.Readlink(filepath.Join(proc, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		return false, fmt.Errorf("%s does not show the processes of this PID namespace", proc)
	}
	all, err := names(proc)
	if err != nil {
		return false, fmt.Errorf("find the processes of the proxy: %w", err)
	}
	seen := false
	for _, pid := range all {
		if !isRunning(filepath.Join(proc, pid), group) {
			continue
		}
		has, err := hasSocket(filepath.Join(proc, pid, "fd"), inode)
		switch {
		case isGone(err):
			continue
		case err != nil:
			return false, fmt.Errorf("find the sockets of the proxy: %w", err)
		case has:
			return true, nil
		}
		seen = true
	}
	if !seen {
		return false, fmt.Errorf("%s does not show the proxy", proc)
	}
	return false, nil
}

// isRunning reports whether the process with a directory of proc is running in the process group.
func isRunning(dir string, group int) bool {
	stat, err := os.ReadFile(filepath.Join(dir, "stat")) // an error if it ended or is no process
	if err != nil {
		return false
	}
	// pid (name) state parent group …, where the name may contain anything.
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	return len(fields) > 2 && fields[0] != "Z" && fields[2] == strconv.Itoa(group)
}

// hasSocket reports whether a directory of file descriptors has the socket with the inode.
func hasSocket(dir string, inode uint32) (bool, error) {
	all, err := names(dir)
	if err != nil {
		return false, err
	}
	want := fmt.Sprintf("socket:[%d]", inode)
	for _, fd := range all {
		target, err := os.Readlink(filepath.Join(dir, fd))
		if err != nil && !isGone(err) {
			return false, err
		}
		if target == want {
			return true, nil
		}
	}
	return false, nil
}

// isGone reports whether a process or a file descriptor has ended.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// names returns the names of the files in a directory, in no order.
func names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}
