package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/source"
)

// maxUnread bounds the answer that says whether there are objects of a kind, in
// bytes.
const maxUnread = 8 << 20

// followUnread tells of the kinds of Istio that are used in the cluster but not
// read, until ctx ends: whoever made such objects meant them to have an effect.
func (s *shared) followUnread(ctx context.Context) {
	kinds := source.Unread()
	told := make(map[string]Problem)
	tick := time.NewTicker(s.waits.installed)
	defer tick.Stop()
	for {
		for i := range kinds {
			s.lookForUnread(ctx, &kinds[i], told)
		}
		var problems []Problem
		for i := range kinds {
			if p, there := told[kinds[i].KubeKind]; there {
				problems = append(problems, p)
			}
		}
		s.unread.Store(&problems)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.unreadAppeared:
		}
	}
}

// lookForUnread looks whether there are objects of a kind, and logs what changed.
func (s *shared) lookForUnread(ctx context.Context, r *source.Resource, told map[string]Problem) {
	found, err := s.anyOf(ctx, r)
	reason := ""
	switch {
	case found != "":
		reason = fmt.Sprintf("%v; there is %s", source.UnreadWarning(r), found)
	case isStatus(err, http.StatusForbidden) && s.definitions.has(r.GroupResource()):
		reason = fmt.Sprintf("%v; whether there are any may not be looked at: %v", source.UnreadWarning(r), err)
	case err != nil && !isStatus(err, http.StatusNotFound) && !isStatus(err, http.StatusForbidden):
		return // it stays as it was; the followers say what is wrong
	}
	old, was := told[r.KubeKind]
	switch {
	case reason == "" && was:
		delete(told, r.KubeKind)
		s.Log.Info("problem of the configuration is gone", "object", r.KubeKind)
	case reason != "" && !was:
		told[r.KubeKind] = Problem{Object: r.KubeKind, Reasons: []string{reason}, Since: s.Now()}
		s.Log.Warn("configuration is not used", "object", r.KubeKind, "reasons", []string{reason})
	case reason != "": // another one of them is no news
		old.Reasons = []string{reason}
		told[r.KubeKind] = old
	}
}

// anyOf names an object of the kind, empty when there is none.
func (s *shared) anyOf(ctx context.Context, r *source.Resource) (string, error) {
	var err error
	for _, version := range r.Versions {
		var list metav1.PartialObjectMetadataList
		if err = s.askList(ctx, pathOf(r, version, ""), &list); isStatus(err, http.StatusNotFound) {
			continue
		}
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		o := &list.Items[0]
		return shorten(fmt.Sprintf("%s %s/%s", r.KubeKind, o.Namespace, o.Name)), nil
	}
	return "", err
}

func (s *shared) askList(ctx context.Context, path string, list any) error {
	ctx, cancel := context.WithTimeout(ctx, s.waits.answer)
	defer cancel()
	body, err := s.client.get(ctx, path, url.Values{"limit": {"1"}}, mediaJSON+fmt.Sprintf(asMetadata, "List"))
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, maxUnread)).Decode(list); err != nil {
		return &answerError{err}
	}
	return nil
}
