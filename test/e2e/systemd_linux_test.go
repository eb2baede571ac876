package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/envoy"
)

const systemd = "/lib/systemd/systemd"

// startSystemd starts systemd with only the units of deploy/systemd. systemd has a cgroup and further
// namespaces of its own inside a machine. The machine has the programs in /usr/local/bin and the files of the
// directory vm in /var/lib/meshctl.
const startSystemd = `set -e
mkdir $CGROUP
echo $$ > $CGROUP/cgroup.procs
exec unshare --pid --fork --kill-child --mount --mount-proc --ipc --uts --cgroup sh -e -c '
mount --make-rprivate /
for dir in /run /usr/local /var/lib /sys/fs/cgroup; do mount -t tmpfs tmpfs $dir; done
case $CGROUP in
/sys/fs/cgroup/systemd/*)
  mkdir /sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd ;;
*) mount -t cgroup2 cgroup2 /sys/fs/cgroup ;;
esac
mkdir -p /usr/local/bin /run/systemd/system/meshctl-agent.service.d
for program in meshctl:$MESHCTL envoy:$ENVOY; do
  touch /usr/local/bin/${program%%:*}
  mount --bind ${program#*:} /usr/local/bin/${program%%:*}
done
cp /etc/passwd /etc/group /run
echo meshctl:x:1337:1337::/var/lib/meshctl:/usr/sbin/nologin >> /run/passwd
echo meshctl:x:1337: >> /run/group
for file in passwd group; do mount --bind /run/$file /etc/$file; done
cp -r $VM /var/lib/meshctl
cp $UNITS/*.service /run/systemd/system
for target in sysinit basic network-online shutdown lab; do
  printf "[Unit]\nDefaultDependencies=no\n" > /run/systemd/system/$target.target
done
printf "[Service]\nStandardOutput=append:$LOG\nStandardError=append:$LOG\n" > /run/systemd/system/meshctl-agent.service.d/log.conf
export container=lab SYSTEMD_UNIT_PATH=/run/systemd/system
exec ` + systemd + ` --system --unit=lab.target --log-target=console
'
`

// TestSystemd runs the units of deploy/systemd on a virtual machine: its programs reach the mesh. When
// the agent is killed, Envoy ends, no socket is left, the rules stay, and systemd starts both again.
// After a stop, no process, file or rule is left.
func TestSystemd(t *testing.T) {
	if _, err := os.Stat(systemd); err != nil {
		t.Skipf("NOT TESTED: the units for systemd, because there is no %s", systemd)
	}
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh)
	server := n.startPod(t, "server", "10.11.0.5", "fd00:a::5")
	servesOn(t, server.listen(t, "8080"), func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "server, called by "+r.Header.Get("X-Forwarded-Client-Cert"))
	})

	machine := n.newMachine(t, "REDIRECT", "client", "10.11.0.77", "fd00:a::77")
	token, roots := filepath.Join(n.dir, "client.token"), filepath.Join(n.dir, "client.pem")
	machine.writeCredentials(t, token, roots)
	group, vm := filepath.Join(n.dir, "group.yaml"), filepath.Join(n.dir, "vm")
	if err := os.WriteFile(group, []byte(`apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: client, namespace: shop}
spec: {template: {serviceAccount: client, labels: {app: client}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "workload", "entry", "configure", "-f", group, "--out", vm, "--cluster-id", "cluster1",
		"--ingress-ip", n.bridge, "--root-ca", roots, "--token-file", token)
	inside := systemdOf(t, machine, vm)

	inside(t, "systemctl", "enable", "--runtime", "meshctl-redirect")
	inside(t, "systemctl", "start", "meshctl-agent")
	machine.waitReady(t)
	request := func(when string) {
		if got, err := machine.curl("http://web.shop/"); err != nil || !strings.Contains(got, "URI=spiffe://cluster.local/ns/shop/sa/client") {
			t.Errorf("%s: %v, %q", when, err, got)
		}
	}
	request("after the start")

	rulesSince := func() string {
		return inside(t, "systemctl", "show", "--property=ActiveState,ActiveEnterTimestampMonotonic", "meshctl-redirect")
	}
	since := rulesSince()
	processes := func() string { return inside(t, "sh", "-c", "pgrep -u "+proxyUser+" || :") }
	before := strings.Fields(processes())
	if len(before) != 2 {
		t.Errorf("processes of the agent: %q", before)
	}
	inside(t, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "meshctl-agent")
	eventually(t, "systemd starts the agent again", func() error {
		if got := inside(t, "systemctl", "show", "--property=NRestarts,SubState", "meshctl-agent"); got != "NRestarts=1\nSubState=running\n" {
			return errors.New(got)
		}
		return nil
	})
	machine.waitReady(t)
	request("after the agent was killed")
	for _, pid := range before {
		if strings.Contains("\n"+processes(), "\n"+pid+"\n") {
			t.Errorf("process %s survived the agent", pid)
		}
	}
	if got := rulesSince(); got != since {
		t.Errorf("the rules were made again: %s, before %s", got, since)
	}

	inside(t, "systemctl", "stop", "meshctl-redirect")
	if left := processes(); left != "" {
		t.Errorf("processes are left: %s", left)
	}
	if left := inside(t, "sh", "-c", "ls -d /run/meshctl 2>/dev/null || :"); left != "" {
		t.Errorf("files are left: %s", left)
	}
	if rules := machine.run(t, "0", "nft", "list", "ruleset"); rules != "" {
		t.Errorf("rules are left:\n%s", rules)
	}
}

// systemdOf starts systemd on a machine with the files of vm, until the test ends. The returned
// function runs a command there, and returns its output.
func systemdOf(t *testing.T, machine *agentPod, vm string) (inside func(t *testing.T, args ...string) string) {
	t.Helper()
	cgroups := "/sys/fs/cgroup/systemd"
	if _, err := os.Stat(cgroups); err != nil {
		cgroups = filepath.Dir(cgroups)
	}
	cgroup := filepath.Join(cgroups, "meshctl-test-"+strconv.Itoa(os.Getpid()))
	dir := machine.node.dir
	cmd := machine.command("0", "sh", "-c", startSystemd)
	log, agentLog := filepath.Join(dir, "systemd.log"), filepath.Join(dir, "meshctl-agent.log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "CGROUP="+cgroup, "MESHCTL="+meshctl, "ENVOY="+envoy.Path(t), "VM="+vm, "UNITS="+absolute(t, "../../deploy/systemd"), "LOG="+agentLog)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it systemd
		_ = cmd.Wait()
		eventually(t, "the cgroup is empty", func() error {
			out, err := exec.Command("find", cgroup, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		if t.Failed() {
			for _, file := range []string{log, agentLog} {
				text, _ := os.ReadFile(file)
				t.Logf("%s:\n%s", filepath.Base(file), text)
			}
		}
	})
	var pid string
	eventually(t, "systemd runs", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			return err
		}
		pid = strings.TrimSpace(string(children))
		if pid == "" {
			return errors.New("no process")
		}
		return exec.Command("nsenter", "--target", pid, "--mount", "--pid", "systemctl", "is-active", "--quiet", "lab.target").Run()
	})
	return func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"--target", pid, "--mount", "--pid", "env", "SYSTEMD_UNIT_PATH=/run/systemd/system"}, args...)...).CombinedOutput()
		if err != nil {
			status, _ := exec.Command("nsenter", "--target", pid, "--mount", "--pid", "systemctl", "status", "--no-pager", "--full", "meshctl-*").CombinedOutput()
			t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, status)
		}
		return string(out)
	}
}
