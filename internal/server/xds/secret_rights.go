package xds

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// secretsBasis is the state that determines the warning about a stream's secrets.
type secretsBasis struct {
	now viewSet
	of  demand
}

// maxNamed is the largest number of secrets that a warning names.
const maxNamed = 3

// checkSecrets logs a warning about requested secrets that the stream does not get, or
// gets expired; once for each set of them.
func (s *session) checkSecrets(now viewSet) {
	basis := secretsBasis{now, s.demanded[sds]}
	if basis == s.checkedSecrets {
		return
	}
	s.checkedSecrets = basis
	var names, reasons []string
	for _, name := range basis.of.names.Names() {
		err := s.checkSecret(name)
		if err == nil {
			continue
		}
		if names = append(names, name); len(names) <= maxNamed {
			reasons = append(reasons, fmt.Sprintf("%.300q %v", name, err))
		}
	}
	bad := s.hub.names.Of(names)
	if bad == s.warnedSecrets {
		return
	}
	s.warnedSecrets = bad
	if len(names) == 0 {
		s.log.Info("the proxy gets all secrets that it requests")
		return
	}
	if more := len(names) - maxNamed; more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	s.hub.cfg.Metrics.badSecrets.Add(float64(len(names)))
	s.log.Warn("the proxy requests secrets that it does not get, or that are out of date", "secrets", strings.Join(reasons, "; "))
}

// checkSecret returns the reason why a secret is not sent, or its defect.
func (s *session) checkSecret(name string) error {
	snap := s.hub.current.Load()
	err := s.demanded[sds].secrets.Check(snap, name, s.hub.cfg.Now())
	if !errors.Is(err, units.ErrKeysDenied) || s.hub.cfg.MayReadKeys == nil {
		return err
	}
	why := s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node)
	switch {
	case errors.Is(why, units.ErrUndecided):
		return nil // nothing to report yet
	case why != nil:
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// pullRight decides whether the caller gets credentials of registries.
func (s *session) pullRight(snap *snapshot.Snapshot) plugins.PullRight {
	switch err := s.mayPull(snap); {
	case err == nil:
		return plugins.PullAllowed
	case errors.Is(err, units.ErrUndecided):
		return plugins.PullUndecided
	default:
		return plugins.PullDenied
	}
}

func (s *session) mayPull(snap *snapshot.Snapshot) error {
	if s.hub.cfg.MayReadKeys == nil {
		return errors.New("this control plane gives nobody secrets")
	}
	return s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node)
}

// checkPulledPlugins logs a warning about plugins that the stream gets without the credentials of
// their registries; once for each set of reasons.
func (s *session) checkPulledPlugins(a *assignment, now viewSet) {
	if now == s.checkedPlugins {
		return
	}
	s.checkedPlugins = now
	warning := ""
	if pulled := a.pulledPlugins(); pulled != nil {
		snap := s.hub.current.Load()
		if err := pulled.Check(snap, s.mayPull(snap)); err != nil {
			warning = err.Error()
		}
	}
	if warning == s.warnedPlugins {
		return
	}
	if s.warnedPlugins = warning; warning == "" {
		s.log.Info("the proxy gets the credentials for all its plugins")
		return
	}
	s.hub.cfg.Metrics.badSecrets.Inc()
	s.log.Warn("the proxy gets plugins without the credentials of their registries", "plugins", fmt.Sprintf("%.1000s", warning))
}
