package mesh

import (
	"errors"
	"fmt"
	"net/url"
)

// CheckHTTPS returns an error if text is not an https URL of a document. Credentials
// are refused because they would appear in logs.
func CheckHTTPS(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("it is not a URL")
	case u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("%q: want https://<host>/<path> without user and fragment", u.Redacted())
	}
	return nil
}
