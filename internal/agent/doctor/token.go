package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/token"
)

const mountToken = "mount a projected service-account token with audience %s at this path, or name the file with --token"

// token checks everything about the token but its signature, whose key only the control plane
// has.
func (c *Config) token() (string, token.Unverified, error) {
	none, mount := token.Unverified{}, fmt.Sprintf(mountToken, c.Audience)
	data, err := files.Read(c.TokenFile, token.MaxSize+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", none, &problem{fmt.Sprintf("there is no token file %s", c.TokenFile), mount}
	case errors.Is(err, fs.ErrPermission):
		return "", none, &problem{fmt.Sprintf("the token file %s may not be read", c.TokenFile), "run the agent as the user of the file, or set fsGroup of the pod"}
	case err != nil:
		return "", none, err
	}
	raw := string(bytes.TrimSpace(data))
	if raw == "" {
		return "", none, &problem{fmt.Sprintf("the token file %s is empty", c.TokenFile), mount}
	}
	t, err := token.ParseUnverified(raw)
	if err != nil {
		return "", none, &problem{fmt.Sprintf("%s holds no token: %v", c.TokenFile, err), mount}
	}
	now := c.Now()
	if begin := latest(t.IssuedAt, t.NotBefore); begin.After(now.Add(skew)) {
		return "", none, clockBehind(now, begin, "the token was issued")
	}
	if !t.Expires.IsZero() && now.After(t.Expires) {
		return "", none, &problem{
			fmt.Sprintf("the token expired at %s, %s ago by the clock of this machine", show(t.Expires), now.Sub(t.Expires).Round(time.Second)),
			"renew the token; if the date is wrong, set the clock. The kubelet renews mounted tokens: a copy of one grows old",
		}
	}
	if want := token.Subject(c.Namespace, c.ServiceAccount); t.Subject != want {
		return "", none, &problem{
			fmt.Sprintf("the token is of %s, but the agent asks for a certificate of %s", t.Subject, want),
			"make --pod-namespace and --service-account (POD_NAMESPACE, SERVICE_ACCOUNT) match the token, or mount the token of that account",
		}
	}
	detail := "of " + t.Subject + ", issued by " + t.Issuer
	if !t.Expires.IsZero() {
		detail += ", expires in " + t.Expires.Sub(now).Round(time.Second).String()
	}
	return detail, t, nil
}
