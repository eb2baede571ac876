package certscmd

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

// The shortest waits that are taken on trust. A mesh that proxies are connected to
// has longer ones, or its control planes can be asked.
const (
	minLeafTTL     = 10 * time.Minute
	minPropagation = time.Minute
)

// short returns what is too short for a mesh with proxies, empty if nothing is.
func (o *rotateStart) short() string {
	switch {
	case o.leafTTL < minLeafTTL:
		return fmt.Sprintf("--leaf-ttl %s is less than %s", cli.FormatDuration(o.leafTTL), cli.FormatDuration(minLeafTTL))
	case o.propagation < minPropagation:
		return fmt.Sprintf("--propagation %s is less than %s", cli.FormatDuration(o.propagation), cli.FormatDuration(minPropagation))
	}
	return ""
}

const whatShortBreaks = "connected proxies would have certificates of before each step after its wait, and refuse others"

// checkWaits refuses --leaf-ttl and --propagation that the certificates of connected
// proxies outlive. Where no control plane is asked for them, short ones are refused.
func (o *rotateStart) checkWaits(ctx context.Context, env *cli.Env) error {
	const orForce = "or, in a rehearsal, --force"
	short := o.short()
	switch {
	case o.force:
		return nil
	case !o.asks() && short == "":
		return nil
	case !o.asks():
		return &rotate.Refusal{
			Reason: short + ": " + whatShortBreaks,
			Fix: "give the longest life time of a certificate in the mesh, name all control planes with --server to have them asked for their proxies, " +
				orForce,
		}
	}
	answer, err := o.inquire(ctx, env, &rotate.Requirement{})
	if err != nil {
		return err
	}
	if err := answer.silent(); err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "Note: %s asked, with %s connected\n", cli.Plural(len(answer.ControlPlanes), "control plane"), proxies(answer.Proxies))
	if lines := o.outliving(answer, env.Now()); len(lines) > 0 {
		return &rotate.Refusal{
			Reason: fmt.Sprintf("certificates of connected proxies end later than %s (--leaf-ttl) from now", cli.FormatDuration(o.leafTTL)),
			Fix:    "give --leaf-ttl the longest life time of a certificate in the mesh, " + orForce + ":\n" + output.EscapeLines(lines),
		}
	}
	// Of proxies without a certificate nothing is known.
	if answer.Proxies > 0 && short != "" && (o.propagation < minPropagation || answer.withoutCertificate()) {
		return &rotate.Refusal{
			Reason: short + ", and proxies are connected: " + whatShortBreaks,
			Fix:    "give longer ones, " + orForce,
		}
	}
	return nil
}

// outliving names the streams whose certificates end after --leaf-ttl, the first
// of them.
func (o *rotateStart) outliving(a *rotateAnswer, now time.Time) []string {
	var lines []string
	more := 0
	for i := range a.ControlPlanes {
		for _, p := range a.ControlPlanes[i].report.Proxies {
			switch {
			case p.Certificate == nil || p.Certificate.Until.Sub(now) <= o.leafTTL:
			case len(lines) == maxNamed:
				more++
			default:
				lines = append(lines, fmt.Sprintf("%s of %s: valid until %s", p.Name, cmp.Or(p.Cluster, "no cluster"), stampOrDash(p.Certificate.Until)))
			}
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// withoutCertificate reports whether the certificate of a proxy is not known.
func (a *rotateAnswer) withoutCertificate() bool {
	for i := range a.ControlPlanes {
		for _, p := range a.ControlPlanes[i].report.Proxies {
			if p.Certificate == nil {
				return true
			}
		}
	}
	return false
}
