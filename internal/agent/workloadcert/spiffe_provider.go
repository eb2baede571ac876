package workloadcert

import (
	"context"
	"time"
)

// Provider passes the certificate of another program to use, and each one that replaces it, until
// ctx ends or the program is away: the chain with its key and the roots of the mesh, PEM.
type Provider func(ctx context.Context, use func(chain, key, roots []byte) error) error

// followProvider publishes the certificates of the provider until ctx ends.
func (m *Manager) followProvider(ctx context.Context) {
	var current *Certificate
	var logged string
	for failures := 0; ; failures++ {
		err := m.cfg.Provider(ctx, func(chain, key, roots []byte) error {
			const at = "of the SPIFFE agent"
			cert, err := parse(provided{chain, key, roots}, placeOf{at, at, at}, m.cfg.Now())
			if err == nil {
				err = m.cfg.Publish(ctx, cert)
			}
			if err != nil {
				m.cfg.Log.Error("the certificate of the SPIFFE agent is refused", "error", err)
				return err
			}
			current, failures, logged = cert, 0, ""
			m.note(current, nil)
			m.cfg.Log.Info("using the certificate of the SPIFFE agent", "expires", cert.NotAfter().UTC().Format(time.RFC3339))
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		m.note(current, err)
		if err != nil && err.Error() != logged {
			logged = err.Error()
			m.cfg.Log.Warn("no certificates from the SPIFFE agent at the moment, trying again", "error", err)
		}
		if !m.sleep(ctx, nil, m.backoff(failures), 0) {
			return
		}
	}
}
