package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Apply replaces the rules of this network namespace by the rules of the options, in one
// transaction, and adds the address from which Envoy calls its application over IPv6 and, for
// transparent redirection, the routes.
func (o *Options) Apply() error {
	err := change(func(conn *nftables.Conn, table *nftables.Table) {
		conn.AddTable(table)
		for _, c := range o.chains() {
			add(conn, table, c)
		}
	})
	if err == nil && !o.None {
		err = setAddress(true)
	}
	if err == nil {
		err = setRoutes(o.routes())
	}
	return err
}

// Undo removes what Apply made in this network namespace, if there is anything.
func Undo() error {
	return errors.Join(change(func(*nftables.Conn, *nftables.Table) {}), setAddress(false), setRoutes(false))
}

// change removes the table, and makes it again as fill does.
func change(fill func(*nftables.Conn, *nftables.Table)) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("talk to nftables: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // there is one to remove
	conn.DelTable(table)
	fill(conn, table)
	err = conn.Flush()
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("change the rules of nftables: %w; it needs the capability NET_ADMIN, as root in this network namespace", err)
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("change the rules of nftables: %w; the kernel needs nf_tables with nft_redir and nft_ct, and nft_tproxy for TPROXY", err)
	case err != nil:
		return fmt.Errorf("change the rules of nftables: %w", err)
	}
	return nil
}

func add(conn *nftables.Conn, table *nftables.Table, c chain) {
	hook := nftables.ChainHookOutput
	if c.hook == prerouting {
		hook = nftables.ChainHookPrerouting
	}
	accept := nftables.ChainPolicyAccept
	to := conn.AddChain(&nftables.Chain{
		Name: c.name, Table: table, Type: nftables.ChainType(c.kind), Hooknum: hook,
		Priority: new(nftables.ChainPriority(c.priority)), Policy: &accept,
	})
	for _, r := range c.rules {
		conn.AddRule(&nftables.Rule{Table: table, Chain: to, Exprs: r.exprs()})
	}
}

// exprs returns the rule as the kernel takes it.
func (r rule) exprs() []expr.Any {
	var out []expr.Any
	protocol := uint32(0) // matched already
	need := func(p uint32) {
		if protocol != p {
			protocol = p
			out = append(out, match{key: l4proto, number: p}.exprs()...)
		}
	}
	for _, m := range r.matches {
		switch m.key {
		case l4proto:
			need(m.number)
			continue
		case tcpDport:
			need(protocolTCP)
		case udpDport, udpSport:
			need(protocolUDP)
		}
		out = append(out, m.exprs()...)
	}
	return append(out, r.do.exprs()...)
}

// register is the one register that the rules need.
const register = 1

func (m match) exprs() []expr.Any {
	op := expr.CmpOpEq
	if m.not {
		op = expr.CmpOpNeq
	}
	is := func(load expr.Any, data []byte) []expr.Any {
		return []expr.Any{load, &expr.Cmp{Op: op, Register: register, Data: data}}
	}
	meta := func(k expr.MetaKey) expr.Any { return &expr.Meta{Key: k, Register: register} }
	atPort := func(offset uint32) []expr.Any {
		return is(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
			binary.BigEndian.AppendUint16(nil, uint16(m.number)))
	}
	switch m.key {
	case iifname:
		return is(meta(expr.MetaKeyIIFNAME), interfaceName(m.text))
	case oifname:
		return is(meta(expr.MetaKeyOIFNAME), interfaceName(m.text))
	case saddr, daddr:
		return address(m.prefix, m.key == saddr, op)
	case l4proto:
		return is(meta(expr.MetaKeyL4PROTO), []byte{byte(m.number)})
	case tcpDport, udpDport:
		return atPort(2)
	case udpSport:
		return atPort(0)
	case skuid:
		return is(meta(expr.MetaKeySKUID), binaryutil.NativeEndian.PutUint32(m.number))
	case skgid:
		return is(meta(expr.MetaKeySKGID), binaryutil.NativeEndian.PutUint32(m.number))
	case ctInvalid:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: register},
			&expr.Bitwise{
				SourceRegister: register, DestRegister: register, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitINVALID), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
		}
	case markOfPacket:
		return is(meta(expr.MetaKeyMARK), binaryutil.NativeEndian.PutUint32(m.number))
	case markOfConnection:
		return is(&expr.Ct{Key: expr.CtKeyMARK, Register: register}, binaryutil.NativeEndian.PutUint32(m.number))
	}
	return nil
}

// interfaceName returns the name of an interface as the kernel compares it.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// address returns the match of a source or a destination, in packets of its IP version.
func address(p netip.Prefix, source bool, op expr.CmpOp) []expr.Any {
	family, offset, size := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if source {
		offset = 12
	}
	if p.Addr().Is6() {
		if family, offset, size = unix.NFPROTO_IPV6, 24, 16; source {
			offset = 8
		}
	}
	out := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{family}},
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
	}
	if !p.IsSingleIP() {
		out = append(out, &expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: size,
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size),
		})
	}
	return append(out, &expr.Cmp{Op: op, Register: register, Data: p.Addr().AsSlice()})
}

func (s statement) exprs() []expr.Any {
	switch s.verb {
	case doReturn:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case doDrop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case doRedirect:
		return []expr.Any{
			&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, s.number)},
			&expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
		}
	case doZone:
		return []expr.Any{
			&expr.Immediate{Register: register, Data: binaryutil.NativeEndian.PutUint16(s.number)},
			&expr.Ct{Key: expr.CtKeyZONE, Register: register, SourceRegister: true},
		}
	case doTransparent:
		return []expr.Any{
			&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, s.number)},
			&expr.TProxy{RegPort: register},
		}
	case doMarkPacket:
		return []expr.Any{
			&expr.Immediate{Register: register, Data: binaryutil.NativeEndian.PutUint32(uint32(s.number))},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true},
		}
	case doMarkConnection:
		return []expr.Any{
			&expr.Immediate{Register: register, Data: binaryutil.NativeEndian.PutUint32(uint32(s.number))},
			&expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true},
		}
	}
	return nil
}
