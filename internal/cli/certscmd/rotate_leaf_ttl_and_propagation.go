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

// The shortest waits without asking control planes. A mesh with proxies has longer ones.
const (
	minLeafTTL     = 10 * time.Minute
	minPropagation = time.Minute
)

// short describes a wait that is too short for a mesh with proxies, empty for none.
func (o *rotateStart) short() string {
	switch {
	case o.leafTTL < minLeafTTL:
		return fmt.Sprintf("--leaf-ttl %s is less than %s", cli.FormatDuration(o.leafTTL), cli.FormatDuration(minLeafTTL))
	case o.propagation < minPropagation:
		return fmt.Sprintf("--propagation %s is less than %s", cli.FormatDuration(o.propagation), cli.FormatDuration(minPropagation))
	}
	return ""
}

const whatShortBreaks = "connected proxies would keep older certificates after the wait of a step, and refuse each other"

// checkWaits refuses --leaf-ttl and --propagation that are too short for the certificates
// of connected proxies. Without asking control planes it refuses short ones.
func (o *rotateStart) checkWaits(ctx context.Context, env *cli.Env) error {
	const orForce = "or, in a rehearsal, --force"
	short := o.short()
	switch {
	case o.force, !o.asks() && short == "":
		return nil
	case !o.asks():
		return &rotate.Refusal{
			Reason: short + ": " + whatShortBreaks,
			Fix:    "give the longest lifetime of a certificate in the mesh, name all control planes with --server, " + orForce,
		}
	}
	answer, err := o.inquire(ctx, env, &rotate.Requirement{})
	if err != nil {
		return err
	}
	if err := answer.silent(); err != nil {
		return err
	}
	env.Notef("Note: %s asked, with %s connected", output.Plural(len(answer.ControlPlanes), "control plane"), proxies(answer.Proxies))
	if lines := o.outliving(answer, env.Now()); len(lines) > 0 {
		return &rotate.Refusal{
			Reason: fmt.Sprintf("certificates of connected proxies expire later than %s (--leaf-ttl) from now", cli.FormatDuration(o.leafTTL)),
			Fix:    "set --leaf-ttl to the longest lifetime of a certificate in the mesh, " + orForce + ":\n" + output.EscapeLines(lines),
		}
	}
	// The certificate of a proxy may be unknown.
	if answer.Proxies > 0 && short != "" && (o.propagation < minPropagation || answer.withoutCertificate()) {
		return &rotate.Refusal{
			Reason: short + ", and proxies are connected: " + whatShortBreaks,
			Fix:    "give longer ones, " + orForce,
		}
	}
	return nil
}

// outliving lists the first streams whose certificates expire after --leaf-ttl.
func (o *rotateStart) outliving(a *rotateAnswer, now time.Time) []string {
	var lines []string
	for i := range a.ControlPlanes {
		for _, p := range a.ControlPlanes[i].report.Proxies {
			if p.Certificate != nil && p.Certificate.Until.Sub(now) > o.leafTTL {
				lines = append(lines, fmt.Sprintf("%s of %s: valid until %s", p.Name, cmp.Or(p.Cluster, "no cluster"), stampOrDash(p.Certificate.Until)))
			}
		}
	}
	if more := len(lines) - maxNamed; more > 0 {
		return append(lines[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return lines
}

// withoutCertificate reports whether the certificate of a proxy is unknown.
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
