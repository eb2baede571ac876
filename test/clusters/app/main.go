// Command app is the program in most images of the pods that tests of clusters start; grpcapp is in
// the other one. The name by which it is called selects a program:
//
//	app           sleeps: the container that holds the network of a pod
//	sleep         the same
//	helloworld    answers HTTP requests at port 5000, as Istio's sample does, with $SERVICE_VERSION
//	curl -s URL   requests a URL; URL[1-9] makes nine requests
//	load -c N URL requests a URL with N clients until its input ends, and prints totals
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "app", "sleep":
		<-ctx.Done()
	case "helloworld":
		err = serve(ctx)
	case "curl":
		err = curl(ctx, os.Args[len(os.Args)-1])
	case "load":
		err = load(ctx, os.Args[1:], os.Stdin)
	default:
		err = fmt.Errorf("no program %s", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// farewell is how long helloworld answers after SIGTERM: until clients know that the pod ends.
const farewell = 3 * time.Second

// serve answers until some time after the context ends.
func serve(ctx context.Context) error {
	server := &http.Server{Addr: ":5000", ReadHeaderTimeout: 10 * time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello version: %s, instance: %s, caller: %s\n", os.Getenv("SERVICE_VERSION"), os.Getenv("HOSTNAME"), caller(r))
	})
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		time.Sleep(farewell)
		ended <- server.Shutdown(context.WithoutCancel(ctx))
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// caller returns the identity that the proxy of the pod has checked.
func caller(r *http.Request) string {
	for part := range strings.SplitSeq(r.Header.Get("X-Forwarded-Client-Cert"), ";") {
		if id, ok := strings.CutPrefix(part, "URI="); ok {
			return id
		}
	}
	return "unknown"
}

// curl requests a URL, or each URL of a range. It stops at the first failure.
func curl(ctx context.Context, url string) error {
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	first, last := 1, 1
	interval := regexp.MustCompile(`\[(\d+)-(\d+)\]`)
	if m := interval.FindStringSubmatch(url); m != nil {
		var errs [2]error
		first, errs[0] = strconv.Atoi(m[1])
		last, errs[1] = strconv.Atoi(m[2])
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
	}
	for n := first; n <= last; n++ {
		if err := get(ctx, interval.ReplaceAllLiteralString(url, strconv.Itoa(n))); err != nil {
			return err
		}
	}
	return nil
}

// get requests a URL and prints the answer.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
