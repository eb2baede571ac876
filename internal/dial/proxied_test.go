package dial

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestProxiedHTTPClientAsksItsProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.RequestURI }))
	t.Cleanup(proxy.Close)

	const url = "http://helloworld.sample:5000/hello"
	client := ProxiedHTTPClient(time.Minute, strings.TrimPrefix(proxy.URL, "http://"), 4)
	if _, err := get(client, url); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got != url {
		t.Errorf("the proxy was asked for %s, want %s", got, url)
	}
}
