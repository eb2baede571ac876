package mesh

import (
	"errors"
	"fmt"
	"net/url"
)

// CheckHTTPS says what is wrong with the https URL of a document that is
// fetched. Credentials in it would end up in logs, so none may be there.
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
