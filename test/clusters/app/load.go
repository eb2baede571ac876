package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	reportInterval = 200 * time.Millisecond
	requestTimeout = 10 * time.Second
	maxFailures    = 20 // with a text
)

// totals counts the requests of load.
type totals struct {
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Answers  map[string]int `json:"answers"` // by version
	// Last is the time of the last answer by version, in milliseconds since 1970.
	Last     map[string]int64 `json:"last"`
	Failures []string         `json:"failures"` // of the first failed requests
	// Slowest is the longest time of a request, in milliseconds.
	Slowest int64 `json:"slowest"`
}

// load requests a URL with several clients until the input or the context ends. It prints
// the totals regularly, each time as a line of JSON.
func load(ctx context.Context, args []string, input io.Reader) error {
	f := flag.NewFlagSet("load", flag.ContinueOnError)
	clients := f.Int("c", 1, "number of clients")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, input)
		stop()
	}()
	var mu sync.Mutex
	t := totals{Answers: map[string]int{}, Last: map[string]int64{}}
	client := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: *clients}}
	var wg sync.WaitGroup
	for range *clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				version, err := answer(client, f.Arg(0))
				mu.Lock()
				t.add(version, err, began)
				mu.Unlock()
				if err != nil { // an unreachable server must not cost all processors
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for tick := time.NewTicker(reportInterval); ; {
		last := false
		select {
		case <-tick.C:
		case <-ended:
			last = true
		}
		mu.Lock()
		err := json.NewEncoder(os.Stdout).Encode(t)
		mu.Unlock()
		if err != nil || last {
			return err
		}
	}
}

func (t *totals) add(version string, err error, began time.Time) {
	t.Requests++
	t.Slowest = max(t.Slowest, time.Since(began).Milliseconds())
	if err == nil {
		t.Answers[version]++
		t.Last[version] = time.Now().UnixMilli()
		return
	}
	if t.Failed++; len(t.Failures) < maxFailures {
		t.Failures = append(t.Failures, fmt.Sprintf("%s: request %d, which began %s earlier: %v",
			time.Now().UTC().Format("15:04:05.000"), t.Requests, time.Since(began).Round(time.Millisecond), err))
	}
}

var versionInAnswer = regexp.MustCompile(`version: (\w+)`)

// answer requests a URL and returns the version in the answer.
func answer(client *http.Client, url string) (string, error) {
	// A request in flight when the input ends is completed, so no context ends it.
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	m := versionInAnswer.FindSubmatch(text)
	if resp.StatusCode != http.StatusOK || m == nil {
		return "", fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return string(m[1]), nil
}
