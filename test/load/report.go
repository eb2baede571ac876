package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// print shows the figures beside what must be reached.
func (r *results) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	row := func(what, figure, limit string) { fmt.Fprintf(t, "%s\t%s\t%s\n", what, figure, limit) }
	fmt.Fprintf(t, "%d proxies, %d Services with %d endpoints each, %s\t\t\n", r.Proxies, r.Services, r.Endpoints, r.Variant)
	row("WHAT", "MEASURED", "MUST REACH")
	row("start until ready", seconds(r.StartToReady), "0.3 s")
	row("RSS when idle, views made", size(float64(r.IdleRSS)), "80 MB")
	row("all proxies have everything", seconds(r.ConnectSeconds), "")
	row("sent for that", size(float64(r.BytesSent)), "")
	row("CPU a proxy", seconds(r.CPUPerProxy), "10 ms")
	row("memory a proxy (RSS growth)", size(r.RSSPerProxy), "150 KB")
	row("one endpoint changes: half of the proxies have it", seconds(r.ChangeP50), "15 ms")
	row("one endpoint changes: all proxies have it", seconds(r.ChangeLast), "40 ms")
	row("server CPU for it", seconds(r.ChangeCPU), "10 ms")
	row("resources generated for it", fmt.Sprintf("%.0f", r.ChangeGenerated), "1")
	row("frames sent for it", fmt.Sprintf("%.0f", r.ChangeFramesSent), fmt.Sprint(r.Proxies+1))
	_ = t.Flush()
}

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.2f ms", s*1000)
	}
	return fmt.Sprintf("%.2f s", s)
}

func size(b float64) string {
	switch {
	case b >= 1e6 || b <= -1e6:
		return fmt.Sprintf("%.1f MB", b/1e6)
	default:
		return fmt.Sprintf("%.1f KB", b/1e3)
	}
}
