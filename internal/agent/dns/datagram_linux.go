package dns

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// readDatagram returns the next datagram. It waits without a buffer, because many queries may wait,
// and a datagram may have 64 KiB.
func readDatagram(conn *net.UDPConn) (data []byte, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var size int
		if size, _, failed = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC); failed == nil {
			data = make([]byte, size)
			size, _, failed = unix.Recvfrom(int(fd), data, 0)
			data = data[:max(0, size)]
		}
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	return data, errors.Join(err, failed)
}
