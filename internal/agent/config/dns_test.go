package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDNS: The agent answers DNS queries if its node says so, as Istio's variables configure it.
func TestDNS(t *testing.T) {
	both := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:15053"), netip.MustParseAddrPort("[::1]:15053")}
	machine := []string{"/etc/resolv.conf"}
	const capture = "ISTIO_META_DNS_CAPTURE=true"
	for name, tc := range map[string]struct {
		flags Flags
		env   []string
		want  *DNS
	}{
		"off":           {Flags{}, nil, nil},
		"off by name":   {Flags{}, []string{"ISTIO_META_DNS_CAPTURE=false"}, nil},
		"captured":      {Flags{}, []string{capture}, &DNS{Listen: both, ResolvConf: machine, Timeout: 5 * time.Second}},
		"JSON":          {Flags{}, []string{`ISTIO_METAJSON_X={"DNS_CAPTURE":true}`}, &DNS{Listen: both, ResolvConf: machine, Timeout: 5 * time.Second}},
		"router":        {Flags{Type: "router"}, []string{capture}, nil},
		"router server": {Flags{Type: "router"}, []string{"ISTIO_META_ENABLE_DNS_SERVER=true"}, &DNS{Listen: both, ResolvConf: machine, Timeout: 5 * time.Second}},
		"one address for all": {
			Flags{BindAddress: "127.1.0.9"},
			[]string{capture},
			&DNS{Listen: []netip.AddrPort{netip.MustParseAddrPort("127.1.0.9:15053")}, ResolvConf: machine, Timeout: 5 * time.Second},
		},
		"all settings": {
			Flags{},
			[]string{capture, "DNS_PROXY_ADDR=127.0.0.1:53", "DNS_FORWARD_PARALLEL=true", "DNS_FORWARD_TIMEOUT=2s"},
			&DNS{
				Listen:     []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")},
				ResolvConf: []string{"/var/lib/istio/resolv.conf", "/etc/resolv.conf"},
				Timeout:    2 * time.Second, Parallel: true, ForwardEarly: true,
			},
		},
		"flag": {
			Flags{DNSForwardParallel: "false"},
			[]string{capture, "DNS_FORWARD_PARALLEL=true"},
			&DNS{Listen: both, ResolvConf: machine, Timeout: 5 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := resolve(t, tc.flags, tc.env...).DNS
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for env, want := range map[string]string{
		"DNS_PROXY_ADDR=localhost":       `DNS_PROXY_ADDR="localhost" is not an address and a port`,
		"DNS_PROXY_ADDR=name:53":         `DNS_PROXY_ADDR="name:53" is not valid: "name" is not an IP address`,
		"DNS_FORWARD_TIMEOUT=5":          `DNS_FORWARD_TIMEOUT="5" is not a duration`,
		"DNS_FORWARD_PARALLEL=sometimes": `DNS_FORWARD_PARALLEL="sometimes" is neither true nor false`,
	} {
		_, _, err := Resolve(Input{Environ: append(base(), capture, env)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", env, err, want)
		}
	}
	_, warnings, err := Resolve(Input{Environ: append(base(), capture, "DNS_PROXY_ADDR=0.0.0.0:15053")})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "every host") {
		t.Errorf("an address that others reach: %v, %v", warnings, err)
	}
}
