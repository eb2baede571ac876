package inject

import (
	"testing"

	"github.com/meshctl/meshctl/internal/agent/redirect"
)

// FuzzRedirection: the container of the redirection accepts every value that the injector accepts.
func FuzzRedirection(f *testing.F) {
	for _, text := range []string{"*", "", "10.0.0.0/8, 192.0.2.1", "::1", "fe80::1%eth0", "80,443", "0", "65536", "eth0,tun+", "interface1234567", "interface123456+", "REDIRECT", "NONE", "*,80", " 80 ,"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, flag := range redirect.Flags() {
			kind := findAnnotation(flag.Annotation)
			if flag.Annotation == "" || kind == nil || kind.check(value) != nil {
				continue
			}
			_, err := redirect.Resolve(func(of *redirect.Flag) (string, string) {
				if of.Name == flag.Name {
					return of.FromAnnotation(value), flag.Annotation
				}
				return of.Default, of.Name
			})
			if err != nil {
				t.Errorf("%s: %q passes the injector: %v", flag.Annotation, value, err)
			}
		}
	})
}
