package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/process"
	"github.com/meshctl/meshctl/test/harness"
)

// secretText is in the files that policies protect.
const secretText = "SECRET-CONTENT"

// secretFiles are the files with secretText.
var secretFiles = []string{"admin/secret.txt", "admin/a+b:c@d.txt", "users/u/private.txt"}

// fileServer is a real program that serves files.
type fileServer struct {
	tool    string                                // which has to be installed
	install string                                // the package that has it
	config  map[string]string                     // files, with DIR, ROOT and PORT in their text
	command func(tool, dir, port string) []string // with its arguments
	handler func(root string) http.Handler        // of a server in Go, which needs no command
}

const nodeServer = `
const fs = require('fs'), http = require('http'), path = require('path'), url = require('url')
const pathOf = {
  whatwg: u => path.join('/', decodeURIComponent(new URL(u, 'http://localhost').pathname)),
  resolved: u => path.resolve('/', '.' + decodeURIComponent(new URL(u, 'http://localhost').pathname)),
  legacy: u => path.normalize(decodeURIComponent(url.parse(u).pathname)),
}[process.argv[3]]
http.createServer((req, res) => {
  try {
    const file = path.join('ROOT', pathOf(req.url))
    if (!file.startsWith('ROOT/')) throw new Error('outside')
    res.end(fs.readFileSync(file))
  } catch (e) {
    res.statusCode = 404
    res.end()
  }
}).listen(process.argv[2], '127.0.0.1')
`

func nodeCommand(kind string) func(tool, dir, port string) []string {
	return func(tool, dir, port string) []string { return []string{tool, dir + "/server.js", port, kind} }
}

// fileServers are the servers whose reading of a path TestFilesBehindPolicies knows. Where a server
// has an option to accept more paths, it is on.
var fileServers = map[string]fileServer{
	"go": {handler: func(root string) http.Handler { return http.FileServer(http.Dir(root)) }},
	"python": {
		tool: "python3", install: "python3",
		command: func(tool, dir, port string) []string {
			return []string{tool, "-m", "http.server", "--bind", "127.0.0.1", "--directory", dir + "/root", port}
		},
	},
	"node":          {tool: "node", install: "nodejs", config: map[string]string{"server.js": nodeServer}, command: nodeCommand("whatwg")},
	"node-resolved": {tool: "node", install: "nodejs", config: map[string]string{"server.js": nodeServer}, command: nodeCommand("resolved")},
	"node-legacy":   {tool: "node", install: "nodejs", config: map[string]string{"server.js": nodeServer}, command: nodeCommand("legacy")},
	"nginx": {
		tool: "nginx", install: "nginx",
		config: map[string]string{"nginx.conf": `
daemon off; master_process off; error_log stderr; pid DIR/nginx.pid;
events {}
http {
  access_log off;
  client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
  server { listen 127.0.0.1:PORT; root ROOT; }
}`},
		command: func(tool, dir, _ string) []string { return []string{tool, "-p", dir, "-c", dir + "/nginx.conf"} },
	},
	"apache": {
		tool: "apache2", install: "apache2-bin",
		config: map[string]string{"httpd.conf": `
ServerRoot /usr/lib/apache2
ServerName localhost
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
Listen 127.0.0.1:PORT
User www-data
Group www-data
PidFile DIR/apache.pid
ErrorLog /dev/stderr
DefaultRuntimeDir DIR
DocumentRoot ROOT
AllowEncodedSlashes On
`},
		command: func(tool, dir, _ string) []string {
			return []string{tool, "-f", dir + "/httpd.conf", "-X"}
		},
	},
	"tomcat": {
		tool: "java", install: "tomcat10-common",
		config: map[string]string{
			"conf/server.xml": `
<Server port="-1"><Service name="s">
  <Connector address="127.0.0.1" port="PORT" allowBackslash="true" encodedSolidusHandling="decode"/>
  <Engine name="e" defaultHost="h"><Host name="h" appBase="DIR/apps"><Context path="" docBase="ROOT"/></Host></Engine>
</Service></Server>`,
			"conf/web.xml": `
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0" metadata-complete="true">
  <servlet><servlet-name>files</servlet-name><servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class></servlet>
  <servlet-mapping><servlet-name>files</servlet-name><url-pattern>/</url-pattern></servlet-mapping>
</web-app>`,
		},
		command: func(tool, dir, _ string) []string {
			const home = "/usr/share/tomcat10"
			return []string{
				tool, "-Xmx64m", "-Dcatalina.home=" + home, "-Dcatalina.base=" + dir, "-Djava.io.tmpdir=" + dir,
				"-cp", home + "/bin/bootstrap.jar:" + home + "/bin/tomcat-juli.jar", "org.apache.catalina.startup.Bootstrap", "start",
			}
		},
	},
}

// startFileServers starts all servers and returns their addresses by name.
func startFileServers(t *testing.T) map[string]string {
	t.Helper()
	for name, s := range fileServers {
		if s.handler != nil {
			continue
		}
		_, err := exec.LookPath(s.tool)
		if name == "tomcat" && err == nil {
			_, err = os.Stat("/usr/share/tomcat10/bin/bootstrap.jar")
		}
		switch {
		case err == nil:
		case os.Geteuid() == 0:
			t.Fatalf("no %s: run apt-get install --no-install-recommends %s: %v", name, s.install, err)
		default:
			t.Skipf("NOT TESTED: which files policies protect in real servers, because there is no %s: install %s", name, s.install)
		}
	}
	dir := harness.ShortDir(t)
	for _, d := range []string{dir, filepath.Join(dir, "root")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	for _, file := range append(secretFiles, "public/ok.txt", "public/style.css") {
		text := secretText
		if strings.HasPrefix(file, "public/") {
			text = "public"
		}
		write(t, filepath.Join(root, file), text)
	}
	out := make(map[string]string)
	for name, s := range fileServers {
		addr := harness.FreeAddrs(t, 1)[0]
		if s.handler == nil {
			startFileServer(t, name, s, filepath.Join(dir, name), root, addr)
		} else {
			addr = serveFiles(t, s.handler(root))
		}
		out[name] = addr
		eventually(t, name+" serves files", func() error {
			if text := fetch(addr, "/public/ok.txt"); !strings.HasSuffix(text, "\r\n\r\npublic") {
				return fmt.Errorf("it answers %q", text)
			}
			return nil
		})
	}
	return out
}

func serveFiles(t *testing.T, h http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: deadline}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String()
}

func startFileServer(t *testing.T, name string, s fileServer, dir, root, addr string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if name == "python" {
		if err := os.Symlink(root, filepath.Join(dir, "root")); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range s.config {
		write(t, filepath.Join(dir, file), strings.NewReplacer("DIR", dir, "ROOT", root, "PORT", port).Replace(text))
	}
	tool, err := exec.LookPath(s.tool)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	args := s.command(tool, dir, port)
	ctx := context.WithoutCancel(t.Context())
	started, err := process.Start(ctx, process.Command{Name: name, Path: args[0], Args: args[1:], Dir: dir, LogFile: log, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = started.Stop(ctx, time.Second)
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, harness.Tail(log))
		}
	})
}

// write writes a file that everybody may read.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fetch returns the whole answer to a request for a target, whatever its form.
func fetch(addr, target string) string {
	conn, err := net.DialTimeout("tcp", addr, deadline)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return err.Error()
	}
	text, _ := io.ReadAll(io.LimitReader(conn, 64<<10)) // a server may reset the connection after its answer
	return string(text)
}
