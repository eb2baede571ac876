package multicluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

const (
	// tryTimeout bounds the requests with one credential.
	tryTimeout = 5 * time.Second
	// triesAtOnce bounds the clusters that are tried at the same time.
	triesAtOnce = 8
)

// TryCredentials sends requests with each credential that has no other fault, and returns
// the credentials that the API servers refuse and the rights that they lack. It does not
// try kubeconfigs with settings that --insecure-remote allows, as these may run commands
// here. untried has an error for each credential that was not tried.
func TryCredentials(ctx context.Context, clusters []remotesecret.Cluster, o remotesecret.Options, known []remotesecret.Finding) (found []remotesecret.Finding, untried []error) {
	results := make([][]remotesecret.Finding, len(clusters))
	untried = make([]error, len(clusters))
	var group errgroup.Group
	group.SetLimit(triesAtOnce)
	for i := range clusters {
		c := &clusters[i]
		skip := slices.ContainsFunc(known, func(f remotesecret.Finding) bool {
			return f.Place == c.Place && f.Cluster == c.ID && (f.Severity != remotesecret.Warning || f.Allowed)
		})
		if skip {
			continue
		}
		group.Go(func() error {
			var err error
			if results[i], err = tryCredential(ctx, c, o); err != nil {
				untried[i] = fmt.Errorf("the credential of cluster %s was not tried: %w", c.ID, err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return slices.Concat(results...), slices.DeleteFunc(untried, func(err error) bool { return err == nil })
}

func tryCredential(ctx context.Context, c *remotesecret.Cluster, o remotesecret.Options) ([]remotesecret.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	config, err := kube.Remote(c, kube.RemoteOptions{Options: o, Timeout: tryTimeout, MaxAnswer: 1 << 20})
	if err != nil {
		return nil, err
	}
	defer kube.Close(config)
	api, err := create.Connect("the API server", config)
	if err != nil {
		return nil, err
	}
	missing, err := api.Missing(ctx, readerRights(c))
	if apierrors.IsUnauthorized(err) {
		return []remotesecret.Finding{remotesecret.NewFinding(c, remotesecret.CredentialRefused, "the API server refuses the credential: 401 Unauthorized")}, nil
	}
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	names := make([]string, len(missing))
	for i, r := range missing {
		names[i] = r.String()
	}
	return []remotesecret.Finding{remotesecret.NewFinding(c, remotesecret.MissingRights, "the credential may not "+strings.Join(names, ", nor "))}, nil
}

// readerRights returns the rights without which services and pods of a cluster are not
// read.
func readerRights(c *remotesecret.Cluster) []create.Right {
	namespaces := c.Namespaces
	if namespaces == nil {
		namespaces = []string{""}
	}
	var out []create.Right
	for _, namespace := range namespaces {
		for _, resource := range []create.Right{{Resource: "services"}, {Resource: "pods"}, {Group: "discovery.k8s.io", Resource: "endpointslices"}} {
			for _, verb := range []string{"list", "watch"} {
				resource.Verb, resource.Namespace = verb, namespace
				out = append(out, resource)
			}
		}
	}
	for _, namespace := range c.CredentialNamespaces {
		out = append(out, create.Right{Verb: "list", Resource: "secrets", Namespace: namespace}, create.Right{Verb: "watch", Resource: "secrets", Namespace: namespace})
	}
	return out
}
