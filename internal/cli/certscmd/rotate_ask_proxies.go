package certscmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/ca"
)

// rotateStep holds the flags of the steps and of status: the place of the rotation and
// the control planes to ask for their proxies.
type rotateStep struct {
	rotateDir
	servers []string
	ask     bool
	token   cli.TokenFlag
	timeout time.Duration
}

func (o *rotateStep) bind(env *cli.Env, cmd *cobra.Command) {
	o.rotateDir.bind(env, cmd)
	fs := cmd.Flags()
	fs.StringSliceVar(&o.servers, "server", nil,
		"HTTP addresses of all control planes of the mesh, to ask them for their proxies, as `host:port` or http://host:port; may be repeated")
	fs.BoolVar(&o.ask, "ask-proxies", false, "With --context, ask the control planes of these clusters for their proxies")
	o.token.Bind(fs)
	cli.DurationVar(fs, &o.timeout, "timeout", 30*time.Second, "Longest wait for the answer of a control plane")
}

// take checks the flags, and checks and keeps the argument.
func (o *rotateStep) take(args []string) error {
	switch {
	case o.ask && len(o.servers) > 0:
		return cli.Usagef("--server and --ask-proxies: give one of them")
	case o.ask && len(o.contexts) == 0:
		return cli.Usagef("--ask-proxies needs --context: for a directory, name the control planes with --server")
	case o.token.File != "" && !o.asks():
		return cli.Usagef("--token-file needs --server or --ask-proxies")
	}
	return o.rotateDir.take(args)
}

// again returns the place, and the control planes to ask, as the arguments of the next command.
func (o *rotateStep) again() string {
	out := o.target()
	if len(o.servers) > 0 {
		out += " --server " + output.ShellWord(strings.Join(o.servers, ","))
	}
	if o.ask {
		out += " --ask-proxies"
	}
	if o.token.File != "" {
		out += " --token-file " + output.ShellWord(o.token.File)
	}
	return out
}

func (o *rotateStep) asks() bool { return o.ask || len(o.servers) > 0 }

// notAsked reports that only the time decides.
const notAsked = "not asked, only the time counts; --server or --ask-proxies asks the control planes"

// gate refuses a step that would break connected proxies.
func (o *rotateStep) gate(env *cli.Env) rotate.Gate {
	return func(ctx context.Context, r rotate.Requirement) error {
		if !o.asks() {
			env.Notef("Note: connected proxies were %s", notAsked)
			return nil
		}
		answer, err := o.inquire(ctx, env, &r)
		if err != nil {
			return err
		}
		for _, note := range answer.notes(&r) {
			env.Notef("Note: %s", note)
		}
		return answer.refusal()
	}
}

// rotateAnswer holds the answers of control planes before a step.
type rotateAnswer struct {
	ControlPlanes []rotateControlPlane `json:"controlPlanes"`
	proxystatus.Readiness

	needsToken string // advice for control planes that need a token
}

// rotateControlPlane is the answer of one control plane.
type rotateControlPlane struct {
	Replica string         `json:"replica"`
	Cluster mesh.ClusterID `json:"cluster,omitzero"`
	// Error is set without an answer, Problem is why the step must wait.
	Error   string `json:"error,omitzero"`
	Problem string `json:"problem,omitzero"`

	report       proxystatus.Report
	unauthorized bool // it needs a token
}

// inquire asks all control planes at the same time.
func (o *rotateStep) inquire(ctx context.Context, env *cli.Env, r *rotate.Requirement) (*rotateAnswer, error) {
	found, err := o.find(ctx, env)
	if err != nil {
		return nil, err
	}
	defer cli.CloseReplicas(found)
	answer := &rotateAnswer{needsToken: o.NeedsToken("", o.namespace)}
	answer.ControlPlanes = cli.ForEach(found, func(at *replicas.Replica) rotateControlPlane { return askControlPlane(ctx, at, r, env.Now()) })
	var reports []proxystatus.Report
	for i := range answer.ControlPlanes {
		reports = append(reports, answer.ControlPlanes[i].report)
	}
	step := proxystatus.RootStep{Trusted: r.Trusted, Gone: r.Gone, Since: r.InForce}
	answer.Readiness = step.Judge(reports, env.Now())
	return answer, nil
}

func (o *rotateStep) find(ctx context.Context, env *cli.Env) ([]*replicas.Replica, error) {
	var out []*replicas.Replica
	tokens := o.token.Tokens(env)
	for _, s := range o.servers {
		at, err := replicas.At(s, tokens, o.timeout)
		if err != nil {
			return nil, cli.Usagef("--server %w", err)
		}
		out = append(out, at)
	}
	if !o.ask {
		return out, nil
	}
	clusters, err := o.connect(env)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		access, err := kube.Load(o.Options(env, c.Context))
		if err == nil {
			var of []*replicas.Replica
			of, err = replicas.Find(ctx, replicas.Options{Access: access.Config, Namespace: o.namespace, Tokens: tokens, Timeout: o.timeout, Now: env.Now})
			out = append(out, of...)
		}
		if err != nil {
			cli.CloseReplicas(out)
			return nil, fmt.Errorf("context %s: %w; --server takes the addresses of control planes", c.Context, err)
		}
	}
	return out, nil
}

// askControlPlane asks a control plane for its proxies and its signing CA.
func askControlPlane(ctx context.Context, at *replicas.Replica, r *rotate.Requirement, now time.Time) rotateControlPlane {
	out := rotateControlPlane{Replica: at.Name}
	var who replicas.Identity
	var page ca.Page
	err := at.Get(ctx, replicas.IdentityPath, nil, &who)
	if err == nil {
		err = at.Get(ctx, "/debug/xds/proxies", nil, &out.report)
	}
	if err == nil {
		err = at.Get(ctx, "/debug/certs", nil, &page)
		if errors.Is(err, replicas.ErrNotFound) { // without a TLS port it has no CA
			page, err = ca.Page{}, nil
		}
	}
	out.Replica, out.Cluster = cmp.Or(out.report.Replica, at.Name), who.Cluster
	if err != nil {
		out.Error, out.report = err.Error(), proxystatus.Report{}
		out.unauthorized = errors.Is(err, replicas.ErrUnauthorized)
		return out
	}
	out.Problem = unfitCA(&page, r, now)
	return out
}

// unfitCA returns why a step must wait for the CA of a control plane, empty if it need not.
func unfitCA(p *ca.Page, r *rotate.Requirement, now time.Time) string {
	if p.Loaded == nil {
		return ""
	}
	if !slices.ContainsFunc(p.Loaded.Roots, func(c ca.Certificate) bool { return c.SHA256 == r.Trusted }) {
		why := cmp.Or(p.Error, "certs status shows its CA")
		return fmt.Sprintf("it does not use the root %s yet: %s", shortSum(r.Trusted), why)
	}
	if slices.Contains(r.GoneSigners, p.Loaded.Signer.SHA256) {
		return fmt.Sprintf("it still signs with %s, below the root to drop", p.Loaded.Signer.Subject)
	}
	for _, s := range p.Served {
		if slices.Contains(r.GoneSigners, s.Signer.SHA256) && s.ValidUntil.After(now) {
			return fmt.Sprintf("certificates that it signed with %s are valid until %s", s.Signer.Subject, stampOrDash(s.ValidUntil))
		}
	}
	return ""
}

// maxNamed bounds the number of proxies in an error.
const maxNamed = 10

// refusal returns the reasons against the step, nil for none.
func (a *rotateAnswer) refusal() error {
	if err := a.silent(); err != nil {
		return err
	}
	problems := a.problems()
	var reasons []string
	fix := "try again later"
	if len(problems) > 0 {
		reasons = append(reasons, "control planes are not ready for the step")
	}
	if len(a.Behind) > 0 {
		reasons = append(reasons, "the step would break "+proxies(len(a.Behind)))
		fix = "try again when the proxies have renewed their certificates and reconnected, for example after a restart"
	}
	if len(reasons) == 0 {
		return nil
	}
	return &rotate.Refusal{Reason: strings.Join(reasons, " and "), Fix: fix + ":\n" + output.EscapeLines(append(problems, a.behind()...))}
}

// silent returns the error of control planes that do not answer, nil for none.
func (a *rotateAnswer) silent() error {
	var lines []string
	advice := ""
	for i := range a.ControlPlanes {
		c := &a.ControlPlanes[i]
		if c.Error != "" {
			lines = append(lines, c.Replica+": "+c.Error)
		}
		if c.unauthorized {
			advice = "; " + a.needsToken
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("cannot check whether the step would break proxies, as control planes do not answer:\n%s%s", output.EscapeLines(lines), advice)
}

// problems lists the control planes for which the step must wait.
func (a *rotateAnswer) problems() []string {
	var lines []string
	for i := range a.ControlPlanes {
		if c := &a.ControlPlanes[i]; c.Problem != "" {
			lines = append(lines, c.Replica+": "+c.Problem)
		}
	}
	return lines
}

// behind lists the first proxies that the step would break.
func (a *rotateAnswer) behind() []string {
	var lines []string
	for i, b := range a.Behind {
		if i == maxNamed {
			return append(lines, fmt.Sprintf("and %d more, listed by status -o json", len(a.Behind)-i))
		}
		lines = append(lines, b.Proxy+" of "+cmp.Or(string(b.Cluster), "no cluster")+": "+b.Why)
	}
	return lines
}

func proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// notes summarises the answers, and lists the clusters without one.
func (a *rotateAnswer) notes(r *rotate.Requirement) []string {
	text := fmt.Sprintf("%s asked, with %s connected: %d ready, %d behind", output.Plural(len(a.ControlPlanes), "control plane"), proxies(a.Proxies), a.Ready, len(a.Behind))
	if a.Unknown > 0 {
		text += fmt.Sprintf(", and %d unknown, as they have no valid certificate", a.Unknown)
	}
	out := []string{text}
	for _, cluster := range r.Clusters {
		if !slices.ContainsFunc(a.ControlPlanes, func(c rotateControlPlane) bool { return c.Cluster == cluster }) {
			out = append(out, fmt.Sprintf("no control plane of cluster %s was asked", cluster))
		}
	}
	return out
}

// write prints the answer as text.
func (a *rotateAnswer) write(env *cli.Env, r *rotate.Requirement) {
	fmt.Fprintln(env.Stdout, "proxies:", strings.Join(a.notes(r), "\n"))
	for _, line := range append(a.problems(), a.behind()...) {
		fmt.Fprintln(env.Stdout, " ", output.Escape(line))
	}
}
