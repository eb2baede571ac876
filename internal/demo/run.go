package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/process"
)

// RunOptions of Run.
type RunOptions struct {
	Options
	// Once ends the demo after the check.
	Once bool
	// Requests is the number of requests that each client sends for the check.
	Requests int
	// Results go to Stdout, progress to Stderr.
	Stdout, Stderr io.Writer
	// Width is nil unless Stdout is a terminal, where lines can be overwritten. It returns
	// the current number of columns, 0 for unknown.
	Width func() int
}

// Run shows the demo. With Once it returns nil only if the check finds no problem. Otherwise
// it goes on with live shares until ctx ends or the reader of o.Stdout has gone, which is no
// error. When ctx ends before that, or o.Hurry is closed, the error is context.Canceled.
func Run(ctx context.Context, o RunOptions) (err error) {
	started := o.Now()
	say := func(mark string) func(string) {
		return func(text string) {
			fmt.Fprintf(o.Stderr, "%s %5.1fs  %s\n", mark, o.Now().Sub(started).Seconds(), text)
		}
	}
	o.Done, o.Note = say("✓"), say("…")
	m, err := Start(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() {
		stopErr := m.Stop(ctx)
		hurried := false
		select {
		case <-o.Hurry:
			hurried, err = true, cmp.Or(err, context.Canceled)
		default:
		}
		switch {
		case stopErr == nil:
			o.Done(m.ending(hurried))
		case errors.Is(err, context.Canceled): // the caller prints nothing else of it
			o.Note(stopErr.Error())
		default:
			err = errors.Join(err, stopErr)
		}
	}()

	bound, cancel := m.bind(ctx)
	defer cancel()
	bound, giveUp := context.WithCancelCause(bound)
	defer giveUp(nil)
	o.Stdout = &results{o.Stdout, giveUp}
	err = m.show(bound, o)
	if err != nil {
		// The reason why a request or program ended early is the better cause.
		if cause := context.Cause(bound); cause != nil {
			return cause
		}
		if failure := m.Err(); failure != nil {
			return failure
		}
	}
	return err
}

// results writes results. The first failed write ends the demo.
type results struct {
	w      io.Writer
	giveUp context.CancelCauseFunc
}

func (r *results) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil {
		err = fmt.Errorf("nothing more can be shown: %w", err)
		r.giveUp(err)
	}
	return n, err
}

// ending reports the state of processes and files after Stop.
func (m *Mesh) ending(hurried bool) string {
	processes := "all processes ended"
	if hurried {
		processes = "all processes ended or killed"
	}
	switch {
	case m.opts.Dir != "":
		return processes + "; everything is kept in " + m.dir
	case m.Err() != nil:
		return processes + ", all files but the logs removed"
	default:
		return processes + ", all files removed"
	}
}

// show prints tables, checks the mesh, and goes on with live shares.
func (m *Mesh) show(ctx context.Context, o RunOptions) error {
	for _, c := range m.clients {
		if err := m.showEndpoints(ctx, c, o.Stdout); err != nil {
			return err
		}
	}
	results, err := m.Check(ctx, o.Requests)
	if err != nil {
		return err
	}
	if err := showResults(o.Stdout, m.clients[0].url, results); err != nil {
		return err
	}
	if err := joinProblems(results); err != nil {
		if o.Once {
			return err
		}
		fmt.Fprintln(o.Stderr, err)
	}
	if o.Once {
		return nil
	}
	m.showCommands(o.Stdout)
	return m.live(ctx, o.Stdout, o.Width)
}

// showEndpoints prints the hosts that the client's Envoy may choose, with the command that
// prints them.
func (m *Mesh) showEndpoints(ctx context.Context, c *Client, w io.Writer) error {
	args := []string{"pc", "endpoints", "--admin", c.Admin(), "--envoy-cluster", target().String()}
	fmt.Fprintf(w, "The client of %s may choose from:\n\n$ %s\n", c.Cluster, m.commandLine(args...))
	cmd := exec.CommandContext(ctx, m.opts.Program, args...)
	process.Isolate(cmd) // Ctrl-C is for the demo
	cmd.Env = m.environment(m.dir)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", m.commandLine(args...), err, strings.TrimSpace(stderr.String()))
	}
	fmt.Fprintln(w)
	return nil
}

// showResults prints the answers and the counters of the proxies.
func showResults(w io.Writer, url string, results []Result) error {
	answers := output.Table{Header: []string{"CLIENT", "VERSION", "ANSWERS", "SHARE", "ROUTE"}}
	counters := output.Table{Header: []string{"CLIENT", "TO ITS POD", "TO GATEWAY", "CONNECTIONS", "BYTES"}}
	for _, r := range results {
		answers.Rows = append(answers.Rows, r.answerRows()...)
		counters.Rows = append(counters.Rows, []string{
			string(r.Client), strconv.FormatUint(r.LocalRequests, 10), strconv.FormatUint(r.GatewayRequests, 10),
			strconv.FormatUint(r.GatewayConnections, 10), strconv.FormatUint(r.GatewayBytes, 10),
		})
	}
	fmt.Fprintf(w, "%s from each client to %s:\n\n", count(results[0].Requests, "request"), url)
	if err := answers.Write(w); err != nil {
		return err
	}
	if err := showPeers(w, results); err != nil {
		return err
	}
	fmt.Fprint(w, "\nRequests that the clients' Envoys sent by each route, and what the other\n"+
		"network's gateway passed on:\n\n")
	if err := counters.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return nil
}

// answerRows returns a row for each version and route, and a row for failed requests.
func (r *Result) answerRows() [][]string {
	type source struct{ version, route string }
	counts := map[source]int{}
	for a, n := range r.Tally.Answers {
		counts[source{a.Version, r.route(a)}] += n
	}
	sources := slices.SortedFunc(maps.Keys(counts), func(a, b source) int {
		return cmp.Or(strings.Compare(a.version, b.version), strings.Compare(a.route, b.route))
	})
	var ns []int
	for _, s := range sources {
		ns = append(ns, counts[s])
	}
	if n := len(r.Tally.Failed); n > 0 {
		sources, ns = append(sources, source{"none", "failed"}), append(ns, n)
	}
	var rows [][]string
	for i, share := range shares(ns) {
		rows = append(rows, []string{string(r.Client), sources[i].version, strconv.Itoa(ns[i]), share, sources[i].route})
	}
	return rows
}

// showPeers prints the client identities that the servers' Envoys saw: a sentence, if all
// are equal, or a table.
func showPeers(w io.Writer, results []Result) error {
	seen := map[string]bool{}
	table := output.Table{Header: []string{"CLIENT", "VERSION", "ANSWERS", "SEEN AS"}, Gap: 2}
	for _, r := range results {
		for _, a := range slices.SortedFunc(maps.Keys(r.Tally.Answers), compareAnswers) {
			seen[a.Peer] = true
			peer := cmp.Or(a.Peer, "unknown")
			table.Rows = append(table.Rows, []string{string(r.Client), a.Version, strconv.Itoa(r.Tally.Answers[a]), peer})
		}
	}
	switch len(seen) {
	case 0:
		return nil
	case 1:
		_, err := fmt.Fprintf(w, "\nThe servers' Envoys saw each of these requests come from\n%s.\n", table.Rows[0][3])
		return err
	default:
		fmt.Fprint(w, "\nWhom the servers' Envoys saw as the caller:\n\n")
		return table.Write(w)
	}
}

func compareAnswers(a, b Answer) int {
	if c := strings.Compare(a.Version, b.Version); c != 0 {
		return c
	}
	return strings.Compare(a.Peer, b.Peer)
}

// showCommands prints commands to try.
func (m *Mesh) showCommands(w io.Writer) {
	c1, c2 := m.clusters[0], m.clusters[1]
	endpoints := m.EndpointFile(c1.id)
	broken := filepath.Join(m.Dir(c1.id), "broken.yaml")
	admin := func(p pod) string { return p.admin().String() }
	groups := []struct {
		title string
		lines []string
	}{
		{"Ask helloworld yourself, as the client of " + string(c1.id) + ":", []string{
			"curl -x http://" + c1.client.at(clientProxyPort).String() + " " + m.clients[0].url,
		}},
		{"Look into the proxies:", []string{
			m.commandLine("pc", "clusters", "--admin", admin(c1.client)),
			m.commandLine("pc", "listeners", "--admin", admin(c2.gateway)),
			m.commandLine("pc", "secrets", "--admin", admin(c1.server)),
		}},
		{"Look at the control plane:", []string{
			m.commandLine("ps", "--server", c1.httpAddr().String()+","+c2.httpAddr().String()),
			m.commandLine("explain", "endpoints", "helloworld.sample", "--from", "client.sample", "--server", c1.httpAddr().String()),
			"curl -s http://" + c1.metricsAddr().String() + "/metrics | grep ^meshctl_",
			"tail -f " + output.ShellWord(m.ControlPlaneLog(c1.id)),
		}},
		{"Take v1 away, and bring it back:", []string{
			"mv " + output.ShellWord(endpoints) + " " + output.ShellWord(m.dir),
			"mv " + output.ShellWord(filepath.Join(m.dir, filepath.Base(endpoints))) + " " + output.ShellWord(endpoints),
		}},
		{"Break the configuration: the log says where, the traffic goes on:", []string{
			"echo 'kind: [' > " + output.ShellWord(broken),
			"rm " + output.ShellWord(broken),
		}},
	}
	fmt.Fprintln(w, "What to try in another terminal:")
	for _, g := range groups {
		fmt.Fprintf(w, "\n  %s\n", g.title)
		for _, line := range g.lines {
			fmt.Fprintf(w, "    %s\n", line)
		}
	}
	fmt.Fprint(w, "\nAnswers of each second, until Ctrl-C:\n\n")
}

// commandLine returns a command line for meshctl that works in any directory.
func (m *Mesh) commandLine(args ...string) string {
	words := []string{output.ShellWord(m.programName())}
	for _, a := range args {
		words = append(words, output.ShellWord(a))
	}
	return strings.Join(words, " ")
}

// programName returns the name of meshctl if a shell finds this program by it, else its
// path.
func (m *Mesh) programName() string {
	name := filepath.Base(m.opts.Program)
	found, err := exec.LookPath(name)
	if err != nil || !filepath.IsAbs(found) {
		return m.opts.Program
	}
	a, errA := os.Stat(found)
	b, errB := os.Stat(m.opts.Program)
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		return m.opts.Program
	}
	return name
}
