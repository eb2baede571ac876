package workload

import (
	"strings"
	"testing"
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

		"":                 `"": "" is not a name of Kubernetes; want [kind/]name[.namespace]`,
		"deploy/":          `"deploy/": "" is not a name of Kubernetes; want [kind/]name[.namespace]`,
		"web.":             `"web.": "" is not the name of a namespace; want [kind/]name[.namespace]`,
		".apps":            `".apps": "" is not a name of Kubernetes; want [kind/]name[.namespace]`,
		"a/b/c":            `"a/b/c": kind "a" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`,
		"po/b/c":           `"po/b/c": "b/c" is not a name of Kubernetes; want [kind/]name[.namespace]`,
		"deployment.v1/x":  `"deployment.v1/x": kind "deployment.v1" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`,
		"../etc/x.y":       `"../etc/x.y": kind ".." is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`,
		"web.apps/../x":    `"web.apps/../x": kind "web.apps" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`,
		"web.ap\x1bps":     `"web.ap\x1bps": "ap\x1bps" is not the name of a namespace; want [kind/]name[.namespace]`,
		"web_1.apps":       `"web_1.apps": "web_1" is not a name of Kubernetes; want [kind/]name[.namespace]`,
		"service.apps/web": `"service.apps/web": kind "service.apps" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`,
	} {
		r, err := Parse(text, "here")
		got := r.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// FuzzParse: what is accepted can be written again, and is safe in a URL's path.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"web-1.apps", "deploy/web", "gateway.gateway.networking.k8s.io/x.y", "a/../b.c", "x%2f.y"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text, "here")
		if err != nil {
			return
		}
		if again, err := Parse(r.String(), "there"); err != nil || again != r {
			t.Errorf("%q is %+v, and that written %+v, %v", text, r, again, err)
		}
		if strings.ContainsAny(r.Name+r.Namespace, "/%?#\\ ") || strings.Contains(r.Name, "..") {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
