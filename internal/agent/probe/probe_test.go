package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestThresholds has the application answer as written, one letter a check: + is
// healthy, - is not, t takes longer than the timeout, p says that the proxy is not ready.
func TestThresholds(t *testing.T) {
	for name, tc := range map[string]struct {
		delay               int
		successes, failures int
		answers             string
		want                []string
	}{
		"at once":              {0, 1, 3, "+++", []string{"0s healthy"}},
		"later":                {5, 1, 3, "+", []string{"5s healthy"}},
		"two needed":           {0, 2, 3, "+-++", []string{"30s healthy"}},
		"never healthy":        {0, 1, 3, "----", []string{"20s down"}},
		"one failure":          {0, 1, 1, "+-+", []string{"0s healthy", "10s down", "20s healthy"}},
		"wavers":               {0, 1, 3, "+--+--+---", []string{"0s healthy", "1m30s down"}},
		"and back":             {0, 2, 2, "++--+-++", []string{"10s healthy", "30s down", "1m10s healthy"}},
		"too slow":             {0, 1, 2, "+tt", []string{"0s healthy", "21s context deadline exceeded"}},
		"proxy not ready":      {0, 1, 2, "pp+", []string{"10s proxy", "20s healthy"}},
		"stopped in the delay": {300, 1, 1, "+", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				began, asked := time.Now(), 0
				var got []string
				c := Config{
					InitialDelay: time.Duration(tc.delay) * time.Second, Timeout: time.Second, Period: 10 * time.Second,
					SuccessThreshold: tc.successes, FailureThreshold: tc.failures,
					Check: func(ctx context.Context) error {
						switch tc.answers[asked-1] {
						case '-':
							return errors.New("down")
						case 't':
							<-ctx.Done()
							return ctx.Err()
						}
						return nil
					},
				}
				first := func(context.Context) error {
					if asked == len(tc.answers) { // the next check would be one more
						stop()
						return nil
					}
					asked++
					if tc.answers[asked-1] == 'p' {
						return errors.New("proxy")
					}
					return nil
				}
				if tc.want == nil {
					time.AfterFunc(time.Minute, stop)
				}
				c.Run(ctx, first, func(problem string) {
					if problem == "" {
						problem = "healthy"
					}
					got = append(got, fmt.Sprint(time.Since(began), " ", problem))
				})
				end := fmt.Sprint(time.Duration(tc.delay+10*len(tc.answers))*time.Second, " ", Stopping)
				if tc.want == nil {
					end = "1m0s " + Stopping
				}
				if want := append(tc.want, end); !slices.Equal(got, want) {
					t.Errorf("reported %q, want %q", got, want)
				}
			})
		})
	}
}
