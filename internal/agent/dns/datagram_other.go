//go:build !linux

package dns

import "net"

// readDatagram returns the next datagram.
func readDatagram(conn *net.UDPConn) ([]byte, error) {
	data := make([]byte, 64<<10)
	n, err := conn.Read(data)
	return data[:n], err
}
