package proxystatus

// Changed returns the difference between two rounds of reports: streams that came,
// ended or changed their state, and replicas that stopped or resumed answering. It
// ignores times that only advance.
func Changed(before, now []Report) []Report {
	old := make(map[streamKey]Proxy)
	replicas := make(map[string]*Report)
	for i := range before {
		replicas[before[i].Replica] = &before[i]
		for _, p := range before[i].Proxies {
			old[streamKey{before[i].Replica, p.Name, p.Stream}] = p
		}
	}
	var out []Report
	for _, r := range now {
		changed := Report{Replica: r.Replica, At: r.At}
		was := replicas[r.Replica]
		if was == nil && r.Error != "" || was != nil && was.Error != r.Error {
			changed.Error = r.Error
		}
		for _, p := range r.Proxies {
			key := streamKey{r.Replica, p.Name, p.Stream}
			was, known := old[key]
			delete(old, key)
			if !known || !same(&was, &p) {
				changed.Proxies = append(changed.Proxies, p)
			}
		}
		if r.Error == "" && was != nil {
			for _, p := range was.Proxies {
				if _, gone := old[streamKey{r.Replica, p.Name, p.Stream}]; gone {
					p.Gone, p.Types = true, nil
					changed.Proxies = append(changed.Proxies, p)
				}
			}
		}
		if changed.Error != "" || len(changed.Proxies) > 0 {
			out = append(out, changed)
		}
	}
	return out
}

// streamKey identifies a stream of a replica.
type streamKey struct{ replica, name, stream string }

// same reports whether the state of a stream is unchanged.
func same(a, b *Proxy) bool {
	if len(a.Types) != len(b.Types) {
		return false
	}
	for i := range a.Types {
		x, y := &a.Types[i], &b.Types[i]
		if x.URL != y.URL || x.State != y.State || x.Sent != y.Sent || x.Acked != y.Acked ||
			x.Error != y.Error || len(x.Refused) != len(y.Refused) {
			return false
		}
	}
	return true
}
