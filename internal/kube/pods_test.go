package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"web-1":                 "pod/web-1.here",
		"web-1.apps":            "pod/web-1.apps",
		"node.example.com.apps": "pod/node.example.com.apps",
		"po/web-1":              "pod/web-1.here",
		"deploy/web.apps":       "deployment/web.apps",
		"Deployment/web":        "deployment/web.here",
		"deployments.apps/web":  "deployment/web.here",
		"deployment.v1.apps/x":  "deployment/x.here",
		"svc/web":               "service/web.here",
		"gateway.gateway.networking.k8s.io/entry.apps": "gateway/entry.apps",

		"":                 `"": "" is not a name of Kubernetes; want ` + WorkloadForms,
		"deploy/":          `"deploy/": "" is not a name of Kubernetes; want ` + WorkloadForms,
		"web.":             `"web.": "" is not the name of a namespace; want ` + WorkloadForms,
		".apps":            `".apps": "" is not a name of Kubernetes; want ` + WorkloadForms,
		"a/b/c":            `"a/b/c": kind "a" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset; want ` + WorkloadForms,
		"po/b/c":           `"po/b/c": "b/c" is not a name of Kubernetes; want ` + WorkloadForms,
		"deployment.v1/x":  `"deployment.v1/x": kind "deployment.v1" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset; want ` + WorkloadForms,
		"../etc/x.y":       `"../etc/x.y": kind ".." is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset; want ` + WorkloadForms,
		"web.apps/../x":    `"web.apps/../x": kind "web.apps" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset; want ` + WorkloadForms,
		"web.ap\x1bps":     `"web.ap\x1bps": "ap\x1bps" is not the name of a namespace; want ` + WorkloadForms,
		"web_1.apps":       `"web_1.apps": "web_1" is not a name of Kubernetes; want ` + WorkloadForms,
		"service.apps/web": `"service.apps/web": kind "service.apps" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset; want ` + WorkloadForms,
	} {
		r, err := ParseWorkload(text, "here")
		got := r.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestPages: the pods of all pages are returned, and an endless list is an error.
func TestPages(t *testing.T) {
	t.Parallel()
	for last, want := range map[int]string{0: "", 3: "", maxPods: "more than 20000; name fewer by their labels"} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			t.Parallel()
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if page, _ := strconv.Atoi(r.FormValue("continue")); page != asked || r.FormValue("labelSelector") != "app=web" {
					t.Errorf("asked for %s, want page %d", r.URL, asked)
				}
				list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
				pods := 1
				if last == maxPods {
					pods = podsAtOnce
				}
				for i := range pods {
					pod := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
					pod.Name = fmt.Sprintf("web-%d-%d", asked, i)
					list.Items = append(list.Items, pod)
				}
				if asked++; asked <= last {
					list.Continue = strconv.Itoa(asked)
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(list); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			f, err := NewPodFinder(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			selector, err := ParseSelector("app=web")
			if err != nil {
				t.Fatal(err)
			}
			pods, err := f.Select(t.Context(), "apps", selector)
			switch {
			case want == "" && (err != nil || len(pods) != last+1):
				t.Errorf("%d pods, %v, want %d", len(pods), err, last+1)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want) || asked != maxPods/podsAtOnce):
				t.Errorf("error %v after %d answers, want %s", err, asked, want)
			}
		})
	}
}

// FuzzParse: an accepted workload can be formatted and parsed again, and is safe in the
// path of a URL.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"web-1.apps", "deploy/web", "gateway.gateway.networking.k8s.io/x.y", "a/../b.c", "x%2f.y"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseWorkload(text, "here")
		if err != nil {
			return
		}
		if again, err := ParseWorkload(r.String(), "there"); err != nil || again != r {
			t.Errorf("%q is %+v, and that written %+v, %v", text, r, again, err)
		}
		if strings.ContainsAny(r.Name+r.Namespace, "/%?#\\ ") || strings.Contains(r.Name, "..") {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
