package clusters

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// jobOnce sends one request.
const jobOnce = `
{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: sample}, spec: {backoffLimit: 0, template: {spec: {
  restartPolicy: Never, serviceAccountName: client,
  containers: [{name: once, image: "docker.io/curlimages/curl:8.16.0", command: [curl, -s, "http://helloworld.sample:5000/hello"]}]}}}}
`

// testJob: in a Job, the proxy starts before the application and ends after it. The first request
// therefore passes strict mutual TLS, and the Job completes.
func (u *user) testJob(t *testing.T) {
	u.apply(jobOnce)
	for _, c := range names {
		out := u.run("kubectl --context " + c + " wait -n sample --for=condition=Complete job/once --timeout=5m >&2\n" +
			"kubectl --context " + c + " get pods -n sample -l job-name=once -o json")
		var pods struct {
			Items []struct {
				Status struct {
					Init []container `json:"initContainerStatuses"`
					Apps []container `json:"containerStatuses"`
				} `json:"status"`
			} `json:"items"`
		}
		if err := json.Unmarshal([]byte(out), &pods); err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) != 1 || len(pods.Items[0].Status.Apps) != 1 {
			t.Fatalf("%s: the Job has other pods or containers: %s", c, out)
		}
		var proxy container
		for _, i := range pods.Items[0].Status.Init {
			if i.Name == "istio-proxy" {
				proxy = i
			}
		}
		if answer := u.run("kubectl --context " + c + " logs -n sample job/once -c once"); !strings.Contains(answer, "caller: spiffe://cluster.local/ns/sample/sa/client\n") {
			t.Errorf("%s: the answer does not name the identity of the client: %q", c, answer)
		}
		app, p := pods.Items[0].Status.Apps[0].State.Terminated, proxy.State.Terminated
		if p.Finished.IsZero() || p.Started.After(app.Started) || p.Finished.Before(app.Finished) || p.ExitCode != 0 {
			t.Errorf("%s: the proxy ran from %v to %v and ended with %d, the application from %v to %v", c, p.Started, p.Finished, p.ExitCode, app.Started, app.Finished)
		}
	}
}

// container is the status of a container that has ended.
type container struct {
	Name  string `json:"name"`
	State struct {
		Terminated struct {
			ExitCode int       `json:"exitCode"`
			Started  time.Time `json:"startedAt"`
			Finished time.Time `json:"finishedAt"`
		} `json:"terminated"`
	} `json:"state"`
}
