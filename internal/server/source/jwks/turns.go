package jwks

import (
	"net/url"
	"slices"
)

// load counts the fetches that run. Only Run uses it.
type load struct {
	all, failed       int
	namespaces, hosts map[string]int
}

func newLoad() load { return load{namespaces: make(map[string]int), hosts: make(map[string]int)} }

// loadKeys says for what a fetch counts.
type loadKeys struct {
	failed     bool // the fetch before it
	namespaces []string
	host       string
}

func loadOf(e *entry) loadKeys { return loadKeys{e.failures > 0, e.namespaces, e.host} }

// hostOf returns the host and the port of a source. Without a URL it is that of the issuer, which
// names the URL.
func hostOf(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return at
	}
	return u.Host
}

// add counts a fetch that begins (1) or ends (-1).
func (l *load) add(k loadKeys, n int) {
	l.all += n
	if k.failed {
		l.failed += n
	}
	for _, ns := range k.namespaces {
		addTo(l.namespaces, ns, n)
	}
	addTo(l.hosts, k.host, n)
}

func addTo(counts map[string]int, key string, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// choose returns the fetch to start next, nil if there is no room for any: of the namespace with the
// fewest fetches, then of a source that did not fail, then of the host with the fewest fetches, then
// the first of the list. A source that several namespaces need has the turn of the one with the
// fewest, so that no namespace delays it by naming it, too.
func (l *load) choose(due []*entry) *entry {
	if l.all >= atOnce {
		return nil
	}
	var best *entry
	var rank []int
	for _, e := range due {
		k := loadOf(e)
		namespace := atOnceNamespace
		for _, ns := range k.namespaces {
			namespace = min(namespace, l.namespaces[ns])
		}
		host, failed := l.hosts[k.host], 0
		if k.failed {
			failed = 1
		}
		if e.running || namespace >= atOnceNamespace || host >= atOnceHost || k.failed && l.failed >= atOnceFailed {
			continue
		}
		if r := []int{namespace, failed, host}; best == nil || slices.Compare(r, rank) < 0 {
			best, rank = e, r
		}
	}
	return best
}
