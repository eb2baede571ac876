package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/backoff"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// waits holds the deadlines and intervals of a follower.
type waits struct {
	answer    time.Duration // deadline for the response to a list or watch
	slow      time.Duration // time until a missing response is reported
	list      time.Duration // deadline for all pages of a list
	idle      time.Duration // deadline in a watch for an event or a bookmark, which comes every minute
	watch     time.Duration // shortest duration of a watch; the longest is twice that
	retry     time.Duration // first backoff, doubled with each failure
	maxRetry  time.Duration // longest backoff
	installed time.Duration // interval between requests for a resource that is not installed
}

func (w waits) withDefaults() waits {
	set := func(d *time.Duration, def time.Duration) { *d = cmp.Or(*d, def) }
	set(&w.answer, 30*time.Second)
	set(&w.slow, 4*time.Second)
	set(&w.list, 5*time.Minute)
	set(&w.idle, 3*time.Minute)
	set(&w.watch, 5*time.Minute)
	set(&w.retry, 50*time.Millisecond)
	set(&w.maxRetry, 4*time.Second)
	set(&w.installed, time.Minute)
	return w
}

// follower follows one resource of the cluster, in one namespace or in all.
type follower struct {
	*shared
	res       source.Resource
	namespace string
	plan      readPlan
	appeared  <-chan struct{} // gets a value when the resource may have been installed
	health    *health

	// The goroutine of run owns these fields.
	known    map[objectKey]knownObject
	left     map[objectKey]struct{} // objects left out, or held in an old version, because of a limit
	leftWhy  error
	closed   map[string]snapshot.Key // of each namespace, what stands for its security policies that are left out
	version  string                  // of the API; empty until one is found
	from     string                  // resource version at which a watch starts; empty if a list is needed
	once     bool                    // everything was read once, or there is nothing to read
	failures int                     // in a row
	buf      []byte
}

// knownObject is the state that is kept for an object.
type knownObject struct {
	version string
	size    int64
	used    bool // it was delivered
	closed  bool // the delivered object is source.Result.Closed
}

func newFollower(s *shared, r source.Resource, namespace string) *follower {
	f := &follower{
		shared: s, res: r, namespace: namespace, plan: planOf(&r, s.Analysis),
		known: make(map[objectKey]knownObject), left: make(map[objectKey]struct{}), closed: make(map[string]snapshot.Key), health: newHealth(&r, namespace),
	}
	if r.Custom {
		f.appeared = s.definitions.watch(r.GroupResource())
	}
	return f
}

// run follows the resource until ctx ends.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			f.failures = 0
			continue
		}
		f.pause(ctx, f.fail(err))
	}
}

var (
	errExpired      = errors.New("the API server no longer knows the changes since then: reading everything again")
	errSilent       = fmt.Errorf("the watch was silent for too long: %w", errTimeout)
	errNotInstalled = errors.New("the API server does not have the resource")
	errBrief        = fmt.Errorf("the API server ends the watch at once: %w", io.EOF)
)

// fail records an error and returns the backoff.
func (f *follower) fail(err error) time.Duration {
	f.failures++
	verb := "watch"
	if f.from == "" {
		verb = "list"
	}
	cause, text := explain(err, verb, &f.res)
	absent := errors.Is(err, errNotInstalled) || cause == CauseForbidden && f.res.Custom && f.definitions.lacks(f.res.GroupResource())
	switch {
	case errors.Is(err, errExpired), errors.Is(err, errSilent):
		f.from = ""
		return f.backoff(f.waits.maxRetry)
	case absent && f.mayForget():
		clear(f.left)
		f.replace(nil)
		f.reportLeft()
		if before := f.health.absent(f.Now()); before != "" {
			f.recovered(before)
		}
		f.readOnceIf(true)
		return f.backoff(f.waits.installed)
	case cause == CauseTCP && f.failures == 1 && f.from != "":
		return f.backoff(f.waits.maxRetry) // connections end now and then
	}
	f.tell(cause, text)
	f.readOnceIf(f.res.Optional && cause == CauseForbidden)
	if f.res.Unread && cause == CauseForbidden { // list may be allowed without watch
		f.from = ""
		return f.waits.installed
	}
	wait := f.backoff(f.waits.maxRetry)
	if status, ok := errors.AsType[*statusError](err); ok {
		wait = max(wait, status.retry)
	}
	return wait
}

// tell reports why the resource is not followed.
func (f *follower) tell(cause Cause, text string) {
	if before := f.health.fail(cause, text, f.Now()); before != text {
		f.failed(f.res.GroupResource(), before, text)
	}
}

// readOnceIf calls readOnce, once, if the follower has read everything.
func (f *follower) readOnceIf(is bool) {
	if is && !f.once {
		f.once = true
		f.readOnce()
	}
}

// mayForget reports whether the objects of a missing resource may be removed. An API
// server that starts does not know at first which resources are installed.
func (f *follower) mayForget() bool {
	return len(f.known) == 0 || f.definitions.lacks(f.res.GroupResource())
}

func (f *follower) backoff(most time.Duration) time.Duration {
	return backoff.Wait(f.failures, f.waits.retry, most, f.Jitter)
}

func (f *follower) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-f.appeared:
		f.failures = 0
	case <-f.answers():
	}
}

// follow lists the resource, unless the watch can resume, and then watches it until the
// watch ends. If objects were left out, it lists again: there may be room now.
func (f *follower) follow(ctx context.Context) error {
	if f.from == "" || len(f.left) > 0 {
		if err := f.list(ctx); err != nil {
			return err
		}
		f.readOnceIf(true)
	}
	return f.watch(ctx)
}

// well records that the resource is followed.
func (f *follower) well() {
	if before := f.health.well(int64(len(f.known)), f.Now()); before != "" {
		f.recovered(before)
	}
	f.reportLeft()
}

// list reads all objects. It removes missing objects when the whole list was read. It
// does not deliver unchanged objects again.
func (f *follower) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.waits.list, errTimeout)
	defer cancel()
	seen := make(map[objectKey]bool, len(f.known))
	budget := f.Limits.List
	clear(f.left)
	var events []snapshot.Event
	var next string
	for {
		p, err := f.page(ctx, next, &budget, func(it item) error {
			o, err := f.decode(it)
			if err != nil {
				return err
			}
			if len(events) == pageSize { // the server may send larger pages
				f.apply(events)
				events = nil
			}
			if f.known[o.key].version != o.version || o.version == "" {
				events = f.put(events, o)
			}
			if _, held := f.known[o.key]; held { // the number of others has no bound
				seen[o.key] = true
			}
			return nil
		})
		f.apply(events)
		events = nil
		if err != nil {
			return err
		}
		if next = p.next; next == "" {
			f.replace(seen)
			f.from = p.version
			f.well()
			return nil
		}
	}
}

// page requests a page of the list: the first one if next is empty.
func (f *follower) page(ctx context.Context, next string, budget *int64, each func(item) error) (page, error) {
	query := url.Values{"limit": {strconv.Itoa(f.plan.page)}}
	if next != "" {
		query.Set("continue", next)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, err := f.answer(cancel, func() (io.ReadCloser, error) { return f.open(ctx, query, "List") })
	if err != nil {
		return page{}, err
	}
	defer body.Close()
	m := &meter{r: body, left: int(*budget), over: fmt.Errorf("a list of more than %d bytes, which %w", f.Limits.List, errLimit)}
	p, err := f.format().list(m, each)
	*budget = int64(m.left)
	f.health.heard(f.Now())
	switch {
	case context.Cause(ctx) != nil && (err != nil || p.version == ""): // a cancelled response may look complete
		return p, context.Cause(ctx)
	case err == nil && p.version == "":
		return p, &answerError{errors.New("a list without a version")}
	}
	return p, err
}

// answer sends a request and waits for the response. It reports a slow response, and
// cancels the request at the deadline.
func (f *follower) answer(cancel context.CancelCauseFunc, ask func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	ended := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		slow, late := time.NewTimer(f.waits.slow), time.NewTimer(f.waits.answer)
		defer slow.Stop()
		defer late.Stop()
		for {
			select {
			case <-ended:
				return
			case <-slow.C:
				f.tell(CauseTimeout, "timeout: the API server has not answered yet")
			case <-late.C:
				cancel(errTimeout)
				return
			}
		}
	})
	body, err := ask()
	close(ended)
	waiting.Wait()
	return body, err
}

// open requests the resource in the known version, or in each version until one exists.
func (f *follower) open(ctx context.Context, query url.Values, suffix string) (io.ReadCloser, error) {
	accept := mediaProtobuf
	switch {
	case onlyMetadata(&f.res):
		accept += fmt.Sprintf(asMetadata, suffix)
	case f.plan.make == nil:
		accept = mediaJSON
	}
	if f.plan.selector != "" {
		query.Set("fieldSelector", f.plan.selector)
	}
	versions := f.res.Versions
	if f.version != "" {
		versions = []string{f.version}
	}
	for _, version := range versions {
		body, err := f.client.get(ctx, pathOf(&f.res, version, f.namespace), query, accept)
		if err == nil {
			f.version = version
		}
		if !isStatus(err, http.StatusNotFound) || !f.res.Custom && !f.res.Optional {
			return body, err
		}
	}
	f.version, f.from = "", ""
	return nil, errNotInstalled
}

// format returns the format of the objects.
func (f *follower) format() objectFormat {
	version := strings.TrimPrefix(f.res.Group+"/"+f.version, "/")
	switch {
	case onlyMetadata(&f.res):
		return objectFormat{version: "meta.k8s.io/v1", kind: "PartialObjectMetadata", max: f.Limits.Object}
	case f.plan.make == nil:
		return objectFormat{version: version, kind: f.res.KubeKind, json: true, max: f.Limits.Object}
	}
	return objectFormat{version: version, kind: f.res.KubeKind, max: f.Limits.Object}
}

// watch follows changes since the end of the previous list or watch.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lasts := f.waits.watch + time.Duration(f.Jitter()*float64(f.waits.watch))
	query := url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {f.from},
		"timeoutSeconds": {strconv.Itoa(int(lasts.Seconds()))},
	}
	body, err := f.answer(cancel, func() (io.ReadCloser, error) { return f.open(ctx, query, "") })
	if isStatus(err, http.StatusGone) {
		return errExpired
	}
	if err != nil {
		return err
	}
	defer body.Close()
	f.well()
	heard := false
	silence := time.AfterFunc(f.waits.idle, func() { cancel(errSilent) })
	defer silence.Stop()
	next := f.format().events(body)
	for {
		silence.Reset(f.waits.idle)
		e, err := next()
		if err == nil {
			err = f.event(e)
		}
		switch {
		case err == nil:
			heard = true
			f.failures = 0
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF) && heard:
			return nil
		case errors.Is(err, io.EOF):
			return errBrief
		default:
			return err
		}
	}
}

// event handles one event of a watch.
func (f *follower) event(e event) error {
	f.health.heard(f.Now())
	if e.typ == eventError {
		return f.watchError(e.object.bytes)
	}
	o, err := f.decode(e.object)
	if err != nil {
		return err
	}
	var events []snapshot.Event
	switch e.typ {
	case eventAdded, eventModified:
		events = f.put(nil, o)
	case eventDeleted:
		events = f.remove(nil, o.key)
	case eventBookmark:
	default:
		return &answerError{fmt.Errorf("an event of type %.100q", e.typ)}
	}
	f.apply(events)
	f.health.count(int64(len(f.known)))
	f.reportLeft()
	if o.version != "" {
		f.from = o.version
	}
	return nil
}

func (f *follower) watchError(b []byte) error {
	media := mediaProtobuf
	if f.plan.make == nil {
		media = mediaJSON
	}
	st := parseStatus(b, media)
	switch {
	case st == nil:
		return &answerError{errors.New("an error that is no Status")}
	case st.Code == http.StatusGone || st.Reason == metav1.StatusReasonExpired:
		return errExpired
	}
	return &statusError{code: int(st.Code), text: shorten(st.Message)}
}
