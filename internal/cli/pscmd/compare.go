package pscmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
)

// compared is the result of comparing one proxy.
type compared struct {
	Proxy    string         `json:"proxy"`
	Cluster  string         `json:"cluster,omitzero"`
	Replicas []string       `json:"replicas"` // of its streams
	Envoy    string         `json:"envoy"`    // source of its configuration
	Types    []comparedType `json:"types"`
}

// comparedType holds the differences of one type.
type comparedType struct {
	proxyconfig.Comparison `json:"-"`

	Type  string `json:"type"` // CDS, LDS or RDS
	Match bool   `json:"match"`
	// Sent and Held count resources.
	Sent int `json:"sent"`
	Held int `json:"held"`
	// Updated is the time of the last update in Envoy, zero for none.
	Updated     time.Time            `json:"updated,omitzero"`
	Differences []comparedDifference `json:"differences"`
}

// comparedDifference is a resource that differs.
type comparedDifference struct {
	Name string `json:"name"`
	Only string `json:"only,omitzero"` // sent or held; empty for both
	Note string `json:"note,omitzero"` // from Envoy
	Diff string `json:"diff,omitzero"` // from sent to held
}

// compareHeld compares the sent configuration with the held one.
func compareHeld(ctx context.Context, sent, held *proxyconfig.Dynamic) ([]comparedType, error) {
	all, err := proxyconfig.Compare(ctx, sent, held, proxyconfig.SentTypes())
	if err != nil {
		return nil, err
	}
	var out []comparedType
	for _, c := range all {
		// Resources that Envoy refused or still warms are not in use.
		c.Differences = slices.DeleteFunc(c.Differences, func(d proxyconfig.Difference) bool { return d.Noted })
		c.Match = len(c.Differences) == 0
		t := comparedType{
			Comparison: c, Type: c.Type, Match: c.Match, Sent: c.A.Count, Held: c.B.Count, Updated: c.B.Updated,
			Differences: []comparedDifference{},
		}
		for _, d := range c.Differences {
			only := map[proxyconfig.Side]string{proxyconfig.A: "sent", proxyconfig.B: "held"}[d.Only]
			note := ""
			if d.NoteB != "" {
				note = heldBy + " " + d.NoteB
			}
			if d.Redacted {
				note = strings.TrimSpace(pccmd.InRedacted + " " + note)
			}
			t.Differences = append(t.Differences, comparedDifference{d.Name, only, note, d.Diff})
		}
		out = append(out, t)
	}
	return out, nil
}

// stream is a stream of a proxy with its replica.
type stream struct {
	*proxystatus.Proxy
	replica *replicas.Replica
}

// compare compares the configuration that a proxy was sent with the configuration of its
// Envoy.
func (o *Options) compare(ctx context.Context, env *cli.Env) error {
	if o.watch || o.fail || o.verbosity > 0 || o.Output.Wide() {
		return cli.Usagef("--watch, --fail, --verbosity and --output %s do not work with WORKLOAD", string(o.Output))
	}
	if err := o.envoy.Check(env); err != nil {
		return err
	}
	found, err := o.find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	reports := cli.AskProxies(ctx, found)
	if err := ctx.Err(); err != nil {
		return err // not the errors of replicas
	}
	if err := o.findProxy(ctx, env, reports, found); err != nil {
		return err
	}
	streams, err := o.streamsOf(reports, found)
	if err != nil {
		return err
	}
	if err := unnamable(reports, streams); err != nil {
		return err
	}
	proxy := streams[0].Proxy
	envoy, err := o.envoyOf(env, &streams[0])
	if err != nil {
		return err
	}
	result := compared{Proxy: proxy.Name, Cluster: proxy.Cluster, Envoy: envoy.String()}
	sent, err := o.sent(ctx, streams)
	if err != nil {
		return err
	}
	held, err := o.held(ctx, envoy, proxy)
	if err != nil {
		return err
	}
	for _, s := range streams {
		result.Replicas = append(result.Replicas, s.replica.Name)
	}
	slices.Sort(result.Replicas)
	result.Replicas = slices.Compact(result.Replicas)
	sent.From, held.From = "what was sent", envoy.String()
	if result.Types, err = compareHeld(ctx, sent, held); err != nil {
		return err
	}
	if err := o.showCompared(env, &result); err != nil {
		return err
	}
	return judgeCompared(env, &result, streams)
}

// findProxy sets proxy to the name of the proxy of WORKLOAD. A namespace in the name takes
// precedence over --namespace.
func (o *Options) findProxy(ctx context.Context, env *cli.Env, reports []proxystatus.Report, found []*replicas.Replica) (err error) {
	contexts := o.ContextsOf(found)
	if o.proxyContext != "" {
		contexts = []string{o.proxyContext}
	}
	known := Options{Cluster: o.Cluster} // in any namespace
	w := cli.WorkloadProxy{
		Named: o.proxy, Namespace: o.namespace, Kube: &o.Kube, Contexts: contexts,
		Known: func() ([]string, error) { return cli.ProxyNames(known.Selected(reports)), nil },
	}
	if o.proxy, err = w.Find(ctx, env); strings.Contains(o.proxy, ".") {
		o.namespace = ""
	}
	return err
}

// streamsOf returns the streams of the proxy, newest first: of name.namespace, of a name
// with dots if it is unique, or the stream of that name. Without --cluster the proxy must
// be in one cluster.
func (o *Options) streamsOf(reports []proxystatus.Report, found []*replicas.Replica) ([]stream, error) {
	var out []stream
	var names, silent []string
	for i := range reports {
		r := &reports[i]
		if r.Error != "" {
			silent = append(silent, r.Replica+": "+r.Error)
		}
		for j := range r.Proxies {
			p := &r.Proxies[j]
			if !o.selects(p) {
				continue
			}
			names = append(names, p.Name)
			if p.Name == o.proxy || p.Stream == o.proxy || p.Name == o.proxy+"."+p.Namespace {
				out = append(out, stream{p, found[i]})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b stream) int { return b.Connected.Compare(a.Connected) })
	var clusters []string
	for _, s := range out {
		if s.Name != out[0].Name {
			return nil, cli.Usagef("%q may be %s or %s: name one of them", o.proxy, output.Escape(out[0].Name), output.Escape(s.Name))
		}
		clusters = append(clusters, s.Cluster)
	}
	switch {
	case len(out) > 0:
		return out, OneCluster(o.proxy, clusters)
	case !answered(reports):
		return nil, o.SilentReports(reports)
	}
	text := fmt.Sprintf("no proxy %q is connected%s", o.proxy, o.where())
	slices.Sort(names)
	near := cli.Near(o.proxy, slices.Compact(names))
	if text += near; near == "" {
		text += ": looked at " + cli.LookedAt(reports)
	}
	return nil, errors.New(output.EscapeLines(append([]string{text}, silent...)))
}

// OneCluster returns an error if proxies of one name are in several clusters.
func OneCluster(proxy string, clusters []string) error {
	clusters = slices.Compact(slices.Sorted(slices.Values(clusters)))
	if len(clusters) < 2 {
		return nil
	}
	for i := range clusters {
		clusters[i] = cmp.Or(clusters[i], "(unknown)")
	}
	return cli.Usagef("%s is in clusters %s: name one with --cluster", output.Escape(proxy), output.Escape(strings.Join(clusters, " ")))
}

// unnamable returns an error if a replica does not number its streams and has the name
// of the proxy in several clusters: it might return the dump of either proxy.
func unnamable(reports []proxystatus.Report, streams []stream) error {
	for i := range reports {
		others := func(p proxystatus.Proxy) bool {
			return p.Name == streams[0].Name && p.Cluster != streams[0].Cluster
		}
		ours := func(p proxystatus.Proxy) bool {
			return p.Name == streams[0].Name && p.Cluster == streams[0].Cluster && p.Stream == ""
		}
		if slices.ContainsFunc(reports[i].Proxies, ours) && slices.ContainsFunc(reports[i].Proxies, others) {
			return fmt.Errorf("%s has %s in several clusters and cannot select one of them: ask it without --xds-address, or as an identity of the system namespace",
				output.Escape(reports[i].Replica), output.Escape(streams[0].Name))
		}
	}
	return nil
}

// sent returns the last configuration that the proxy was sent: for each type from the
// newest stream that subscribed to it.
func (o *Options) sent(ctx context.Context, streams []stream) (*proxyconfig.Dynamic, error) {
	out := &proxyconfig.Dynamic{Types: map[string]proxyconfig.DynamicType{}}
	for _, s := range streams {
		wanted := slices.DeleteFunc(slices.Clone(s.Types), func(t proxystatus.Type) bool {
			_, has := out.Types[t.Type]
			return has
		})
		if len(wanted) == 0 {
			continue
		}
		var page json.RawMessage
		var dump *proxyconfig.Dynamic
		err := s.replica.Get(ctx, "/debug/config_dump", url.Values{"proxyID": {cmp.Or(s.Stream, s.Name)}}, &page)
		if err == nil {
			dump, err = proxyconfig.ReadDynamic(bytes.NewReader(page), proxyconfig.Selection{Types: proxyconfig.SentTypes()})
		}
		if err != nil {
			return nil, fmt.Errorf("what %s sent to %s: %w", s.replica.Name, s.Stream, err)
		}
		for _, t := range wanted {
			if d, ok := dump.Types[t.Type]; ok {
				out.Types[t.Type] = d
			}
		}
	}
	return out, nil
}

// envoyOf returns the source for the Envoy of a proxy: the flags, else its pod, which is in the
// cluster of --proxy-context, else in that of the control plane.
func (o *Options) envoyOf(env *cli.Env, s *stream) (*fetch.Source, error) {
	p := s.Proxy
	source := o.envoy.Source
	source.Timeout = o.Timeout
	if source.Admin != "" || source.File != "" {
		return &source, nil
	}
	access, err := kube.Load(o.Kube.Options(env, cmp.Or(o.proxyContext, s.replica.Context, o.Contexts.First())))
	if errors.Is(err, kube.ErrNoAccess) {
		return nil, cli.Usagef("cannot read the pod of %s: %w; name its admin interface with --admin, or a saved dump with --file", output.Escape(p.Name), err)
	}
	if err != nil {
		return nil, err
	}
	pccmd.ReadInPod(&source, kube.PodPort{
		Access: access.Config, Namespace: p.Namespace, Name: strings.TrimSuffix(p.Name, "."+p.Namespace), Port: o.adminPort,
	})
	return &source, nil
}

// held returns the configuration of the Envoy.
func (o *Options) held(ctx context.Context, envoy *fetch.Source, proxy *proxystatus.Proxy) (*proxyconfig.Dynamic, error) {
	var dump *proxyconfig.Dynamic
	err := envoy.Read(ctx, fetch.Everything, func(r io.Reader) (err error) {
		dump, err = proxyconfig.ReadDynamic(r, proxyconfig.Selection{Types: proxyconfig.SentTypes()})
		return err
	})
	switch {
	case err != nil && envoy.Via != "":
		return nil, fmt.Errorf("%w; if the pod is in another cluster, name it with --proxy-context, or give the address of its Envoy with --admin", err)
	case err != nil:
		return nil, err
	case dump.Proxy != "" && dump.Proxy != proxy.Name:
		return nil, fmt.Errorf("%s belongs to proxy %s, not to %s", envoy, output.Escape(dump.Proxy), output.Escape(proxy.Name))
	case dump.Cluster != "" && proxy.Cluster != "" && dump.Cluster != proxy.Cluster:
		return nil, fmt.Errorf("%s belongs to %s in cluster %s, not in cluster %s; name the cluster of the pod with --proxy-context",
			envoy, output.Escape(proxy.Name), output.Escape(dump.Cluster), output.Escape(proxy.Cluster))
	}
	return dump, nil
}

// judgeCompared returns a finding for differences. It also reports refused versions when
// nothing differs, because the proxy is then no longer sent them.
func judgeCompared(env *cli.Env, c *compared, streams []stream) error {
	var differ, remarks []string
	for _, t := range c.Types {
		if !t.Match {
			differ = append(differ, t.String())
		}
		switch x := stateOf(streams, t.Type); {
		case x.State == proxystatus.Error:
			remarks = append(remarks, t.Type+": the proxy refused a version: "+cmp.Or(x.Error, "without a reason"))
		case x.State == proxystatus.Stale && !t.Match:
			remarks = append(remarks, t.Type+": the proxy has not answered the last response yet")
		}
	}
	text := c.Proxy + ": " + strings.Join(append(differ, remarks...), "; ")
	switch {
	case len(differ) > 0:
		return cli.Findingsf("%s", output.Escape(text))
	case len(remarks) > 0:
		env.Notef("%s", text)
	}
	return nil
}

// stateOf returns the state of a type on the newest stream that subscribed to it.
func stateOf(streams []stream, short string) proxystatus.Type {
	for _, s := range streams {
		for _, t := range s.Types {
			if t.Type == short {
				return t
			}
		}
	}
	return proxystatus.Type{}
}

// showCompared prints the result, as text in the words of istioctl.
func (o *Options) showCompared(env *cli.Env, c *compared) error {
	if !o.Output.OfTable() {
		return output.Write(env.Stdout, o.Output, c)
	}
	var text strings.Builder
	for _, t := range c.Types {
		verdict := "Match"
		if !t.Match {
			verdict = "Don't Match"
		}
		loaded := ""
		if t.Type == "RDS" && !t.Updated.IsZero() {
			loaded = " (RDS last loaded at " + t.Updated.In(env.Now().Location()).Format(time.RFC1123) + ")"
		}
		fmt.Fprintf(&text, "%s %s%s\n", t.Title, verdict, loaded)
		for _, d := range t.Comparison.Differences {
			pccmd.WriteDifference(&text, "Istiod", heldBy, t.Title, d)
		}
	}
	_, err := io.WriteString(env.Stdout, text.String())
	return err
}

// heldBy is istioctl's name for the Envoy.
const heldBy = "Envoy"
