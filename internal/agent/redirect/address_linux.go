package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// setAddress adds ::6 to the loopback interface, from which Envoy calls its application over
// IPv6, or removes it. Without IPv6 there is nothing to do.
func setAddress(there bool) error {
	lo, err := net.InterfaceByName(loopback)
	if err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("talk to the kernel: %w", err)
	}
	defer func() { _ = conn.Close() }()
	address := passthrough[1].Addr().AsSlice()
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.IFA_LOCAL, Data: address}, {Type: unix.IFA_ADDRESS, Data: address},
	})
	if err != nil {
		return fmt.Errorf("encode an address: %w", err)
	}
	message := netlink.Message{
		Header: netlink.Header{Type: unix.RTM_DELADDR, Flags: netlink.Request | netlink.Acknowledge},
		// A struct ifaddrmsg: family, length of the prefix, flags, scope, interface.
		Data: binary.NativeEndian.AppendUint32([]byte{unix.AF_INET6, 128, unix.IFA_F_NODAD, unix.RT_SCOPE_HOST}, uint32(lo.Index)),
	}
	message.Data = append(message.Data, attributes...)
	if there {
		message.Header.Type, message.Header.Flags = unix.RTM_NEWADDR, message.Header.Flags|netlink.Create|netlink.Replace
	}
	_, err = conn.Execute(message)
	if noIPv6 := errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EOPNOTSUPP); err == nil || noIPv6 {
		return nil
	}
	if !there && errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil
	}
	return fmt.Errorf("change the address ::6 of the loopback interface: %w", err)
}
