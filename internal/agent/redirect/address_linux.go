package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
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
	address := passthrough[1].Addr().AsSlice()
	o := object{
		add: unix.RTM_NEWADDR, remove: unix.RTM_DELADDR,
		// A struct ifaddrmsg: family, length of the prefix, flags, scope, interface.
		header:     binary.NativeEndian.AppendUint32([]byte{unix.AF_INET6, 128, unix.IFA_F_NODAD, unix.RT_SCOPE_HOST}, uint32(lo.Index)),
		attributes: []netlink.Attribute{{Type: unix.IFA_LOCAL, Data: address}, {Type: unix.IFA_ADDRESS, Data: address}},
	}
	if err := o.set(there); err != nil && !noIPv6(err) {
		return fmt.Errorf("change the address ::6 of the loopback interface: %w", err)
	}
	return nil
}

// noIPv6 reports whether the kernel has refused a request because IPv6 is disabled.
func noIPv6(err error) bool {
	return errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EOPNOTSUPP)
}

// object is something of the network configuration of this namespace.
type object struct {
	add, remove netlink.HeaderType
	header      []byte // the struct of its kind
	attributes  []netlink.Attribute
}

// set adds the object or, if there is false, removes it. It does nothing if that is so already.
func (o *object) set(there bool) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("talk to the kernel: %w", err)
	}
	defer func() { _ = conn.Close() }()
	attributes, err := netlink.MarshalAttributes(o.attributes)
	if err != nil {
		return fmt.Errorf("encode attributes: %w", err)
	}
	message := netlink.Message{
		Header: netlink.Header{Type: o.remove, Flags: netlink.Request | netlink.Acknowledge},
		Data:   slices.Concat(o.header, attributes),
	}
	done := []error{syscall.EADDRNOTAVAIL, syscall.ENOENT, syscall.ESRCH}
	if there {
		message.Header.Type, message.Header.Flags = o.add, message.Header.Flags|netlink.Create|netlink.Excl
		done = []error{syscall.EEXIST}
	}
	_, err = conn.Execute(message)
	if slices.ContainsFunc(done, func(is error) bool { return errors.Is(err, is) }) {
		return nil
	}
	return err
}
