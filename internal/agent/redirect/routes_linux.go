package redirect

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// setRoutes adds the rule and the route of each IP version by which packets with clientMark stay on
// this machine, or removes them. Without IPv6 it changes only the routes of IPv4.
func setRoutes(there bool) error {
	lo, err := net.InterfaceByName(loopback)
	if err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		rule := object{
			add: unix.RTM_NEWRULE, remove: unix.RTM_DELRULE,
			// A struct fib_rule_hdr: family, lengths of destination and source, type of service, table, two
			// reserved bytes, action, flags.
			header: []byte{family, 0, 0, 0, RouteTable, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0},
			attributes: []netlink.Attribute{
				{Type: unix.FRA_PRIORITY, Data: number(rulePriority)}, {Type: unix.FRA_FWMARK, Data: number(clientMark)},
			},
		}
		route := object{
			add: unix.RTM_NEWROUTE, remove: unix.RTM_DELROUTE,
			// A struct rtmsg: family, lengths of destination and source, type of service, table, protocol, scope,
			// type, flags.
			header:     []byte{family, 0, 0, 0, RouteTable, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0},
			attributes: []netlink.Attribute{{Type: unix.RTA_OIF, Data: number(uint32(lo.Index))}},
		}
		for _, o := range []object{route, rule} {
			if err := o.set(there); err != nil && (family == unix.AF_INET || !noIPv6(err)) {
				return fmt.Errorf("change the route of packets with the mark %d: %w", clientMark, err)
			}
		}
	}
	return nil
}
