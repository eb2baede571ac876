package redirect

import (
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite golden files")

// options returns the options of some flags, by their short names or names, and the defaults
// for the rest.
func options(t *testing.T, given map[string]string) *Options {
	t.Helper()
	o, err := Resolve(func(f *Flag) (string, string) {
		for _, name := range []string{f.Short, f.Name} {
			if v, ok := given[name]; ok {
				return v, "-" + name
			}
		}
		return f.Default, f.Name
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// cases are the options of the golden files.
func cases(t *testing.T) map[string]*Options {
	t.Helper()
	withDNS := func(o *Options, servers ...netip.Addr) *Options {
		o.DNS, o.DNSServers, o.AllDNS = 15053, servers, len(servers) == 0
		return o
	}
	invalid := options(t, nil)
	invalid.DropInvalid = true
	return map[string]*Options{
		"default":       options(t, nil),
		"dns":           withDNS(options(t, nil), netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::a")),
		"all-dns":       withDNS(options(t, map[string]string{"u": "1337,0", "g": "1"})),
		"nothing":       options(t, map[string]string{"b": "", "i": ""}),
		"none":          options(t, map[string]string{"m": "NONE"}),
		"tproxy":        options(t, map[string]string{"m": "TPROXY"}),
		"tproxy-ports":  options(t, map[string]string{"m": "TPROXY", "b": "80,8080", "c": "eth1", "k": "vnet0"}),
		"drop-invalid":  invalid,
		"inbound-ports": options(t, map[string]string{"b": "80,8080"}),
		"exclusions":    options(t, map[string]string{"d": "15020,9100", "o": "22,3306", "x": "10.0.0.0/8,192.0.2.7,fd00::/8,2001:db8::1", "c": "eth1,net1"}),
		"inclusions":    options(t, map[string]string{"i": "10.96.0.0/12,fd00:96::/112", "q": "3306,27017", "k": "vnet0"}),
		"loopback":      options(t, map[string]string{"i": "127.0.0.0/8", "host-ipv4-loopback-cidr": "127.0.0.0/8"}),
		"groups":        options(t, map[string]string{"outbound-owner-groups": "2000,2001", "outbound-owner-groups-exclude": "3000"}),
		"virtual":       options(t, map[string]string{"k": "vnet0,vnet1", "p": "25001", "z": "25006", "e": "25008"}),
	}
}

// TestText compares the rules with golden files.
func TestText(t *testing.T) {
	for name, o := range cases(t) {
		golden := filepath.Join("testdata", name+".nft")
		got := o.Text()
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// inNamespace moves the rest of the test to a network namespace of its own, which ends with it.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: rules in the kernel, because a network namespace needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("NOT TESTED: rules in the kernel, because there is no nft: install nftables")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// nft runs nft with an input and returns its output.
func nft(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s\n%s", strings.Join(args, " "), err, out, input)
	}
	return string(out)
}

// TestApply: The kernel has the rules of the text, also when rules are applied again, and none
// after Undo. Other tables stay.
func TestApply(t *testing.T) {
	for name, o := range cases(t) {
		t.Run(name, func(t *testing.T) {
			inNamespace(t)
			const other = "table inet istio-proxy-nat { chain x { }; }"
			nft(t, other, "-f", "-")
			if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			before, routes := nft(t, "", "list", "ruleset"), ownRoutes(t)
			for range 2 {
				if err := o.Apply(); err != nil {
					t.Fatal(err)
				}
			}
			applied := nft(t, "", "list", "ruleset")
			if got := ownRoutes(t); (got != routes) != o.Transparent {
				t.Errorf("routes: %s", got)
			}
			if callsApplication(t) == o.None {
				t.Errorf("::6 is an address: %v", !o.None)
			}
			nft(t, o.Text(), "-f", "-")
			if diff := cmp.Diff(nft(t, "", "list", "ruleset"), applied); diff != "" {
				t.Errorf("the kernel's rules (-of the text +applied):\n%s", diff)
			}
			for range 2 {
				if err := Undo(); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, nft(t, "", "list", "ruleset")); diff != "" || callsApplication(t) {
				t.Errorf("after Undo (-want +got):\n%s", diff)
			}
			if got := ownRoutes(t); got != routes {
				t.Errorf("routes after Undo: %s", got)
			}
		})
	}
}

// TestModeChanges: rules of another mode remove the routes of TPROXY.
func TestModeChanges(t *testing.T) {
	inNamespace(t)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := ownRoutes(t)
	for _, mode := range []string{"TPROXY", "REDIRECT", "TPROXY", "NONE"} {
		if err := options(t, map[string]string{"m": mode}).Apply(); err != nil {
			t.Fatal(err)
		}
		if got := ownRoutes(t); (got != before) != (mode == "TPROXY") {
			t.Errorf("routes with %s: %s", mode, got)
		}
	}
}

// ownRoutes returns the rules of routes and the routes of the package.
func ownRoutes(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, args := range [][]string{{"rule"}, {"-6", "rule"}, {"route", "show", "table", "133"}, {"-6", "route", "show", "table", "133"}} {
		text, err := exec.Command("ip", args...).CombinedOutput()
		switch {
		case err == nil:
			out.Write(text)
		case !strings.Contains(string(text), "does not exist"): // a table without routes
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, text)
		}
	}
	return out.String()
}

// callsApplication reports whether ::6 is an address of this network namespace.
func callsApplication(t *testing.T) bool {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(a net.Addr) bool { return a.String() == "::6/128" })
}

// TestNoRights: Without the capability the error names it.
func TestNoRights(t *testing.T) {
	inNamespace(t)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil { // of this thread
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Apply": options(t, nil).Apply(), "Undo": Undo()} {
		if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefused: Each wrong value is named with its place.
func TestRefused(t *testing.T) {
	for flag, value := range map[string]string{
		"p": "0", "z": "65536", "e": "", "u": "istio-proxy", "g": "-1", "m": "tproxy", "b": "80,x", "d": "80-90", "c": "a name",
		"i": "10.0.0.0/33", "x": "example.com", "q": "*", "k": "a-name-that-is-too-long", "host-ipv4-loopback-cidr": "10.0.0.0/8",
	} {
		_, err := Resolve(func(f *Flag) (string, string) {
			if f.Short == flag || f.Name == flag {
				return value, "the flag"
			}
			return f.Default, f.Name
		})
		if err == nil || !strings.HasPrefix(err.Error(), "the flag=") {
			t.Errorf("-%s %s: %v", flag, value, err)
		}
	}
	if _, err := Resolve(func(f *Flag) (string, string) {
		if f.Short == "u" {
			return "", f.Name
		}
		return f.Default, f.Name
	}); err == nil {
		t.Error("no user of the proxy is accepted")
	}
}
