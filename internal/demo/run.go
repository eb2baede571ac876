package demo

import (
	"bytes"
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
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// RunOptions of Run.
type RunOptions struct {
	Options
	// Once ends the demo after the check.
	Once bool
	// Requests is how many each client sends for the check.
	Requests int
	// Results go to Stdout, progress to Stderr.
	Stdout, Stderr io.Writer
	// Terminal says that Stdout is one, where a line can be written over.
	Terminal bool
}

// Run shows the demo. With Once it returns nil only if the mesh does all that
// it should; else it shows live shares until ctx ends, which is no error.
func Run(ctx context.Context, o RunOptions) (err error) {
	started := o.Now()
	o.Done = func(step string) {
		fmt.Fprintf(o.Stderr, "✓ %5.1fs  %s\n", o.Now().Sub(started).Seconds(), step)
	}
	m, err := Start(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() {
		stopErr := m.Stop(ctx)
		switch {
		case stopErr != nil:
			err = errors.Join(err, stopErr)
		case o.Dir != "":
			o.Done("all processes ended; everything is kept in " + m.dir)
		case m.Err() != nil:
			o.Done("all processes ended, all files but the logs removed")
		default:
			o.Done("all processes ended, all files removed")
		}
	}()

	ctx, cancel := m.bind(ctx)
	defer cancel()
	if err := m.show(ctx, o); err != nil {
		if failure := m.Err(); failure != nil {
			return failure
		}
		return err
	}
	return nil
}

// show prints the tables, checks, and goes on with live shares.
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
	return m.live(ctx, o.Stdout, o.Terminal)
}

// showEndpoints prints what the client's Envoy may choose from, with the
// command that prints it.
func (m *Mesh) showEndpoints(ctx context.Context, c *Client, w io.Writer) error {
	args := []string{"pc", "endpoints", "--admin", c.Admin(), "--cluster", target().String()}
	fmt.Fprintf(w, "The client of %s may choose from:\n\n$ %s\n", c.Cluster, m.commandLine(args...))
	cmd := exec.CommandContext(ctx, m.opts.Program, args...)
	cmd.Env = m.environment(m.dir)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", m.commandLine(args...), err, strings.TrimSpace(stderr.String()))
	}
	fmt.Fprintln(w)
	return nil
}

// showResults prints who answered, and what the proxies counted.
func showResults(w io.Writer, url string, results []Result) error {
	answers := output.Table{Header: []string{"CLIENT", "VERSION", "ANSWERS", "SHARE", "ROUTE", "CLIENT AS THE SERVER SAW IT"}}
	counters := output.Table{Header: []string{"CLIENT", "TO ITS OWN POD", "TO THE GATEWAY", "GATEWAY CONNECTIONS", "GATEWAY BYTES"}}
	for _, r := range results {
		for _, a := range slices.SortedFunc(maps.Keys(r.Tally.Answers), compareAnswers) {
			n := r.Tally.Answers[a]
			answers.Rows = append(answers.Rows, []string{
				string(r.Client), a.Version, strconv.Itoa(n), percent(n, r.Requests), r.route(a), a.Peer,
			})
		}
		if n := len(r.Tally.Failed); n > 0 {
			answers.Rows = append(answers.Rows, []string{
				string(r.Client), "none", strconv.Itoa(n), percent(n, r.Requests), "failed", "",
			})
		}
		counters.Rows = append(counters.Rows, []string{
			string(r.Client), strconv.FormatUint(r.LocalRequests, 10), strconv.FormatUint(r.GatewayRequests, 10),
			strconv.FormatUint(r.GatewayConnections, 10), strconv.FormatUint(r.GatewayBytes, 10),
		})
	}
	fmt.Fprintf(w, "%d requests from each client to %s:\n\n", results[0].Requests, url)
	if err := answers.Write(w); err != nil {
		return err
	}
	fmt.Fprint(w, "\nWhat the clients' Envoys sent, and the other network's gateway passed on:\n\n")
	if err := counters.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return nil
}

func compareAnswers(a, b Answer) int {
	if c := strings.Compare(a.Version, b.Version); c != 0 {
		return c
	}
	return strings.Compare(a.Peer, b.Peer)
}

// showCommands prints what a curious person would type next.
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
			"curl -s http://" + c1.metricsAddr().String() + "/metrics | grep ^meshctl_",
			"tail -f " + quote(m.ControlPlaneLog(c1.id)),
		}},
		{"Take v1 away, and bring it back:", []string{
			"mv " + quote(endpoints) + " " + quote(m.dir),
			"mv " + quote(filepath.Join(m.dir, filepath.Base(endpoints))) + " " + quote(endpoints),
		}},
		{"Break the configuration: the log says where, the traffic goes on:", []string{
			"echo 'kind: [' > " + quote(broken),
			"rm " + quote(broken),
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

// commandLine is how a person runs meshctl with these arguments from the
// working directory.
func (m *Mesh) commandLine(args ...string) string {
	program := m.opts.Program
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, program); err == nil && filepath.IsLocal(rel) {
			program = "." + string(filepath.Separator) + rel
		}
	}
	words := []string{quote(program)}
	for _, a := range args {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}

// quote makes s one word of a shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

const (
	liveRate     = 10 // requests a second and client
	liveInterval = time.Second
)

// live sends requests from all clients and prints a line a second, until ctx
// ends. It returns nil unless the mesh failed.
func (m *Mesh) live(ctx context.Context, w io.Writer, terminal bool) error {
	type outcome struct {
		client int
		answer Answer
		err    error
	}
	outcomes := make(chan outcome)
	var senders sync.WaitGroup
	defer senders.Wait()
	for i, c := range m.clients {
		senders.Go(func() {
			tick := time.NewTicker(time.Second / liveRate)
			defer tick.Stop()
			for {
				a, err := c.Get(ctx)
				select {
				case outcomes <- outcome{i, a, err}:
				case <-ctx.Done():
					return
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}

	tallies := newTallies(len(m.clients))
	tick := time.NewTicker(liveInterval)
	defer tick.Stop()
	for {
		select {
		case o := <-outcomes:
			if o.err != nil {
				tallies[o.client].Failed = append(tallies[o.client].Failed, o.err)
			} else {
				tallies[o.client].Answers[o.answer]++
			}
		case <-tick.C:
			line := liveLine(m.clusterIDs(), tallies)
			if terminal {
				fmt.Fprintf(w, "\r%s\x1b[K", line)
			} else {
				fmt.Fprintln(w, line)
			}
			tallies = newTallies(len(m.clients))
		case <-ctx.Done():
			if terminal {
				fmt.Fprintln(w)
			}
			return m.Err()
		}
	}
}

func newTallies(n int) []Tally {
	out := make([]Tally, n)
	for i := range out {
		out[i].Answers = map[Answer]int{}
	}
	return out
}

func (m *Mesh) clusterIDs() []mesh.ClusterID {
	var out []mesh.ClusterID
	for _, c := range m.clusters {
		out = append(out, c.id)
	}
	return out
}

// liveLine says what each client was answered, such as
// "cluster1: 4 v1, 6 v2   cluster2: 5 v1, 5 v2, 1 failed (…)".
func liveLine(clients []mesh.ClusterID, tallies []Tally) string {
	var parts []string
	for i, id := range clients {
		versions := tallies[i].Versions()
		text := fmt.Sprintf("%s: %2d v1, %2d v2", id, versions["v1"], versions["v2"])
		if failed := tallies[i].Failed; len(failed) > 0 {
			text += fmt.Sprintf(", %d failed (%v)", len(failed), failed[0])
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "   ")
}
