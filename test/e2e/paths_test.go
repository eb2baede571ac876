package e2e

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var randomPaths = flag.Int("paths", 150, "how many random paths TestFilesBehindPolicies requests, besides the known ones")

// pathPolicies are what the ports of the workload permit, each in another way: nothing of
// secretFiles. A port without policy is before them.
var pathPolicies = []struct{ allow, paths string }{
	{"", `paths: ["/admin*", "/users*"]`},
	{"", `paths: ["/admin/*", "/users/*"]`},
	{"", `paths: [/admin/secret.txt, "/admin/a+b:c@d.txt", /users/u/private.txt]`},
	{"", `paths: [/%61dmin/secret%2etxt, /admin/a%2Bb%3ac@d.txt, /users%2fu/private.txt]`},
	{"", `paths: ["*/secret.txt", "*b:c@d.txt", "*private.txt"]`},
	{"", `paths: ["/admin/{*}", "/users/{*}/private.txt"]`},
	{"", `paths: ["/admin/{**}", "/{**}/private.txt"]`},
	{"", `notPaths: ["/public/*", "*.css", "/{*}/ok.txt"]`},
	{"yes", `paths: ["/public/*", /]`},
	{"yes", `paths: ["*.css", "*/ok.txt"]`},
	{"yes", `paths: ["/public/{*}", "/{*}/ok.txt"]`},
	{"yes", `notPaths: ["/admin/*", "/users/{*}/private.txt"]`},
}

// firstPathPort is the port without policy.
const firstPathPort = 5000

// knownPaths are paths of attacks, and forms that the servers may resolve in another way than Envoy.
var knownPaths = slices.Concat(
	each("%sadmin/secret.txt", "/", "//", "///", "/.%2f", "/.%2F", "/%2e%2f", "/.%5c", "/.%5C", "/%2e/", "/./", "/x/../", "/x/%2e%2e/", "/x/..%2f", "/x%2f..%2f", "/x%2f%2e%2e/",
		"/%2e%2e/", "/%2f./", "/%2f/", "/%5c", `/\`, `\`, `/.\`, `/x\..\`, "/.;/", "/;/", "/;x=y/", "/x/..;/", "/x/..;y=z/", "/x/%2e%2e;/", "/%2e;/", "/..;/", "/x/.;/..;/", "/public/..%2f", "/public/%2e%2e;/",
		"/public/..;/", "/public/x/..%2f..%2f", "/x/..%3b/", "//x/", `/\x/`, `\\x/`, "///x/", "//x@y:80/", "//x;/", "/%2fx/", "/%2e%2e%2f", "/.%2e/", "/%252e%252e%252f", "/x/%252e%252e/", "/%c0%ae/", "/x/%c0%ae%c0%ae/",
		"/x/%u002e%u002e/", "/%uff0e/", "/x/%ef%bc%8e%ef%bc%8e/", "/%00/", "/x%00/../", "/x%3f/../", "/%23/../", "/.%00/", "/...%2f", "/x/..%2f;y/", "/%%32%65/", "/x/%%32%65%%32%65/", "/%%32%66", "/%2%66", "http://x/", "http://x//", "http://x/.%2f"),
	each("/admin%ssecret.txt", "/", "//", "%2f", "%2F", "%5c", `\`, "/./", "/.%2f", "%2f./", "%2f.%2f", ";/", ";x/", ";x%2fy/", ";x/;y/", "/;/", "/;x/;/", ";%2f..%2f/", "/x/..%2f", "/x;/..;/", "/%2e/", "%2f%2e%2f", "/x%2f..%2f", "%3b/", "%00/", ".%2f", "%20/"),
	each("/admin/secret.txt%s", "", "/", "/.", "%2f", "%2f.", ";", ";x", ";.css", ";/ok.txt", "/.%2fok.txt", "?x", "?/public/ok.txt", "%3f", "%3f/public/ok.txt", "%23", "%23.css", "%00", "%00.css", "%20", ".", "::$DATA", "/..%2fsecret.txt", "/x/../..%2fsecret.txt", "%0a", ";/..;/ok.txt", "/;.css", "%3b.css", "\x80"),
	[]string{
		"/%61dmin/secret.txt", "/%61%64%6d%69%6e/%73ecret.txt", "/%%361dmin/secret.txt", "/%2561dmin/secret.txt", "/admin/secret%2etxt", "/ADMIN/secret.txt", "/admin/a+b:c@d.txt", "/admin/a%2bb:c@d.txt", "/admin/a+b%3Ac@d.txt",
		"/admin/a%2Bb%3ac%40d.txt", "/admin/%61+b:c%40d%2etxt", "/users/u/private.txt", "/users/u%2fprivate.txt", "/users/u/.%2fprivate.txt", "/users/u;x/private.txt", "/users/;x/u/private.txt", "/users/%75/private.txt", "/users/x/..%2fu/private.txt",
		"/public/ok.txt", "/public//ok.txt", "/public/../admin/secret.txt", "/public/..%2fadmin%2fsecret.txt", `/public/..\admin\secret.txt`, "/public/..;x/admin/secret.txt;.css", "/public;/..;/admin/secret.txt", "/public/%2e%2e%2fadmin/secret.txt/ok.txt",
		"//ok.txt/../admin/secret.txt", "//public/../admin/secret.txt", "/\x80/../admin/secret.txt", "/public/\x80/..%2f..%2fadmin/secret.txt", "/admin/\x80/..%2fsecret.txt", "/admin/x\x80/../secret.txt",
	},
)

// randomPath changes the path of a secret file so that some servers still serve it.
func randomPath(r *rand.Rand) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	slash := func() string { return one("/", "/", "/", "//", "%2f", "%2F", "%5c", `\`, ";/", ";a=b/") }
	junk := func() string {
		out := ""
		for range r.IntN(3) {
			dots := one(".", "%2e", "%2E") + one("", "", ";", ";x", "%3b")
			up := one("..", "%2e.", ".%2e", "%2E%2e") + one("", "", ";", ";x")
			out += one(dots+slash(), one("x", "public", "public;y", "ok.txt", "%00", "%25")+slash()+up+slash(), ";x"+slash(), slash(), up+slash())
		}
		return out
	}
	var out strings.Builder
	out.WriteString(one("/", "/", "/", "/", "//x/", `\`, "/public/..;/", "/public/..%2f"))
	for i, segment := range strings.Split(secretFiles[r.IntN(len(secretFiles))], "/") {
		if i > 0 {
			out.WriteString(slash())
		}
		out.WriteString(junk())
		for _, c := range []byte(segment) {
			if r.IntN(20) == 0 {
				fmt.Fprintf(&out, one("%%%02x", "%%%02X", "%%25%02x"), c)
			} else {
				out.WriteByte(c)
			}
		}
	}
	return out.String() + one("", "", "", "", ";x", ";.css", "/", "%2f", "/.", "?x", ";/ok.txt", "%23")
}

// TestFilesBehindPolicies: whatever the form of a path, real servers behind a real Envoy serve no
// file that a DENY policy refuses or that an ALLOW policy does not permit, with any
// normalization of paths.
func TestFilesBehindPolicies(t *testing.T) {
	servers := startFileServers(t)
	application := startRelay(t, servers)
	p := protect(t, pathMesh(application, "BASE"), signer{})
	paths := slices.Clone(knownPaths)
	const stream = 3
	r := rand.New(rand.NewPCG(uint64(*randomPaths), stream))
	for range *randomPaths {
		paths = append(paths, randomPath(r))
	}
	served := make(map[string]int)
	// Rules for paths that are not normalized come last: a listener with earlier settings drains.
	for _, normalization := range []string{"BASE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES", "NONE"} {
		t.Run(normalization, func(t *testing.T) {
			p.setPaths(t, application, normalization)
			var all sync.WaitGroup
			for i := range len(pathPolicies) + 1 {
				all.Go(func() {
					c := &rawClient{addr: fmt.Sprintf("127.3.0.1:%d", firstPathPort+i)}
					defer c.close()
					for _, path := range paths {
						answer, err := c.get(path)
						switch {
						case err != nil:
							t.Errorf("%q: %v", path, err)
						case i == 0:
							countServers(served, answer)
						case answer != "":
							t.Errorf("in spite of %s, %q is served: %s", pathPolicies[i-1].paths, path, answer)
						}
					}
				})
			}
			all.Wait()
		})
	}
	for name := range servers {
		if served[name] < 40 {
			t.Errorf("%s serves a secret file for %d paths: too few to test", name, served[name])
		}
	}
	t.Logf("%d paths, of which servers serve %v", 4*len(paths), served)
}

// pathMesh is the mesh of a workload with a port for each of pathPolicies, all with the same application.
func pathMesh(application, normalization string) string {
	ports, ingress := "", ""
	for i := range len(pathPolicies) + 1 {
		number := firstPathPort + i
		ports += fmt.Sprintf("{name: http-%d, port: %d}, ", number, number)
		ingress += fmt.Sprintf("  - {bind: 127.3.0.1, port: {number: %d, protocol: HTTP, name: http-%d}, defaultEndpoint: '%s'}\n", number, number, application)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: helloworld, namespace: sample}
spec: {selector: {app: helloworld}, clusterIP: 10.97.0.1, ports: [%s]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: helloworld, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  ingress:
%s---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "{pathNormalization: {normalization: %s}}"}
`, ports, ingress, normalization)
}

// setPaths sets how Envoy normalizes paths, and waits until all listeners do.
func (p *protected) setPaths(t *testing.T, application, normalization string) {
	t.Helper()
	replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), pathMesh(application, normalization))
	allowed := fmt.Sprintf(`{to: [{operation: {notPorts: ["%d"`, firstPathPort+len(pathPolicies)+1)
	var policies, rules []string
	for i, policy := range pathPolicies {
		port := firstPathPort + 1 + i
		rule := fmt.Sprintf(`{to: [{operation: {ports: ["%d"], %s}}]}`, port, policy.paths)
		if policy.allow == "" {
			policies = append(policies, `{action: DENY, rules: [`+rule+`]}`)
		} else {
			allowed += fmt.Sprintf(`, "%d"`, port)
			rules = append(rules, rule)
		}
	}
	p.apply(t, append(policies, `{rules: [`+strings.Join(append(rules, allowed+"]}}]}"), ", ")+`]}`)...)
	want := map[string]string{"NONE": "/x//y%2fq/%2e%2e/z", "BASE": "/x//z", "MERGE_SLASHES": "/x/z", "DECODE_AND_MERGE_SLASHES": "/x/y/z"}[normalization]
	eventually(t, "Envoy normalizes paths by "+normalization, func() error {
		c := &rawClient{addr: fmt.Sprintf("127.3.0.1:%d", firstPathPort)}
		defer c.close()
		switch target, _, err := c.send("/x//y%2fq/%2e%2e/z"); {
		case err != nil:
			return err
		case target != want:
			return fmt.Errorf("it forwards %q, want %q", target, want)
		}
		return listenersAre(t, "listener_manager.total_listeners_warming: 0")
	})
}

// countServers counts the servers in an answer.
func countServers(served map[string]int, answer string) {
	for name := range strings.FieldsSeq(answer) {
		served[name]++
	}
}

// rawClient sends targets of any form to an address, on one connection while it lasts.
type rawClient struct {
	addr    string
	conn    net.Conn
	answers *bufio.Reader
}

func (c *rawClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// get returns the names of the servers that serve a secret file for a target.
func (c *rawClient) get(target string) (string, error) {
	_, servers, err := c.send(target)
	return servers, err
}

// send returns what the relay got and which servers serve a secret file for it; nothing if Envoy
// refuses the request.
func (c *rawClient) send(target string) (got, servers string, err error) {
	if c.conn == nil {
		d := net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
		if c.conn, err = d.Dial("tcp", c.addr); err != nil {
			return "", "", err
		}
		c.answers = bufio.NewReader(c.conn)
	}
	_ = c.conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(c.conn, "GET "+target+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		c.close()
		return "", "", err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		c.close()
		return "", "", nil // Envoy closes the connection
	} else if err != nil {
		return "", "", err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.Close || err != nil {
		c.close()
	}
	if resp.StatusCode != http.StatusOK {
		return "", "", err
	}
	got, servers, _ = strings.Cut(string(body), "\n")
	return got, servers, err
}

// startRelay starts the application, which asks all servers for the target of each request. It
// answers with the target and the names of those that serve a secret file.
func startRelay(t *testing.T, servers map[string]string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	relay := &relay{servers: servers, known: make(map[string]func() string)}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() {
				defer conn.Close()
				relay.serve(conn)
			})
		}
	})
	return listener.Addr().String()
}

type relay struct {
	servers map[string]string
	mu      sync.Mutex
	known   map[string]func() string // by target
}

func (r *relay) serve(conn net.Conn) {
	requests := textproto.NewReader(bufio.NewReader(conn))
	for {
		line, err := requests.ReadLine()
		if err != nil {
			return
		}
		for header := line; header != "" && err == nil; {
			header, err = requests.ReadLine()
		}
		target := strings.TrimSuffix(strings.TrimPrefix(line, "GET "), " HTTP/1.1")
		answer := target + "\n" + r.serving(target)
		if _, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer); err != nil {
			return
		}
	}
}

// serving returns the names of the servers that serve a secret file for a target.
func (r *relay) serving(target string) string {
	r.mu.Lock()
	answer, ok := r.known[target]
	if !ok {
		answer = sync.OnceValue(func() string {
			var names []string
			for _, name := range slices.Sorted(maps.Keys(r.servers)) {
				if strings.Contains(fetch(r.servers[name], target), secretText) {
					names = append(names, name)
				}
			}
			return strings.Join(names, " ")
		})
		r.known[target] = answer
	}
	r.mu.Unlock()
	return answer()
}
