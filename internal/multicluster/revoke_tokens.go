package multicluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// Readers ends tokens of service accounts with which other clusters read a cluster.
type Readers struct {
	// From is the cluster, Namespace the namespace of the accounts.
	From      *Cluster
	Namespace string
	// Keep are Secrets whose tokens must not end.
	Keep []string
	// OnlyOurs keeps all token Secrets that meshctl did not make.
	OnlyOurs bool
	// Strangers are clusters that may use the same tokens. If there are any, no token
	// ends.
	Strangers []mesh.ClusterID
	// Say reports progress to a person.
	Say func(format string, args ...any)

	accounts []create.Account
	tokens   []*remotesecret.Cluster
}

// Add adds an account by name.
func (r *Readers) Add(name string) {
	account := create.Account{Namespace: r.Namespace, Name: name}
	if !slices.Contains(r.accounts, account) {
		r.accounts = append(r.accounts, account)
	}
}

// AddToken adds the token of a remote secret and its account.
func (r *Readers) AddToken(c *remotesecret.Cluster) error {
	account, err := readerOf(c, r.Namespace)
	if err != nil {
		return err
	}
	r.Add(account.Name)
	r.tokens = append(r.tokens, c)
	return nil
}

// AddSecret adds the token of a cluster in a remote secret.
func (r *Readers) AddSecret(secret *corev1.Secret, id mesh.ClusterID) error {
	c, err := clusterOf(secret, id)
	if err != nil {
		return err
	}
	return r.AddToken(c)
}

// readerOf returns the service account of the token in a remote secret. The token is not
// verified, and the writer of the secret could name any account, so readerOf refuses
// accounts of other namespaces.
func readerOf(c *remotesecret.Cluster, namespace string) (create.Account, error) {
	account, err := create.AccountOf(c)
	if err != nil {
		return account, err
	}
	if account.Namespace != namespace {
		return account, fmt.Errorf("%s has a token of service account %s: the readers of its cluster are service accounts of namespace %s",
			c, account, namespace)
	}
	return account, nil
}

// End ends tokens by deleting their Secrets: the Secrets that meshctl made, and the
// Secrets of added tokens. It reports other Secrets. It returns the number of deleted
// Secrets and the reasons why added tokens still work.
func (r *Readers) End(ctx context.Context) (ended int, working []string, err error) {
	for _, account := range r.accounts {
		n, err := r.endOf(ctx, account)
		ended += n
		if err != nil {
			return ended, nil, err
		}
	}
	for _, c := range r.tokens {
		why, err := r.works(ctx, c)
		if err != nil {
			return ended, nil, err
		}
		if why != "" && !slices.Contains(working, why) {
			working = append(working, why)
		}
	}
	return ended, working, nil
}

func (r *Readers) endOf(ctx context.Context, account create.Account) (ended int, err error) {
	found, err := r.From.Credentials(ctx, account)
	if err != nil {
		return 0, err
	}
	var shared []string
	for _, f := range found {
		added := slices.ContainsFunc(r.tokens, func(c *remotesecret.Cluster) bool { return f.Token != "" && f.Token == c.User.Token })
		switch {
		case slices.Contains(r.Keep, f.Name):
		case !f.Ours && (r.OnlyOurs || !added):
			r.Say("%s: kept secret %s/%s, which meshctl did not create: its token of service account %s is valid until you delete the secret",
				r.From.Name, account.Namespace, f.Name, account.Name)
		case len(r.Strangers) > 0:
			shared = append(shared, f.Name)
		default:
			if err := r.From.DeleteSecret(ctx, account.Namespace, f.Name); err != nil {
				return ended, err
			}
			ended++
			r.Say("%s: deleted secret %s/%s and so revoked its tokens of service account %s",
				r.From.Name, account.Namespace, f.Name, account.Name)
		}
	}
	if len(shared) > 0 {
		r.Keep = append(r.Keep, shared...)
		r.Say("Warning: %s: kept the tokens of service account %s in secret %s, because cluster %s may use them; "+
			"to replace them, name the contexts of all clusters that read this one: meshctl remote-secret rotate --context %s --to CONTEXTS",
			r.From.Name, account, strings.Join(shared, ", "), join(r.Strangers), output.ShellWord(r.From.context))
	}
	return ended, nil
}

// works returns the reason why a token still works, or "" if it has ended or is kept.
func (r *Readers) works(ctx context.Context, c *remotesecret.Cluster) (string, error) {
	account, err := create.AccountOf(c)
	if err != nil {
		return "", err
	}
	claims, err := remotesecret.ReadToken(c.User.Token)
	if err != nil {
		return "", err
	}
	works := fmt.Sprintf("%s: credential %s of service account %s still works, ", r.From.Name, c.CredentialHash(), account)
	if claims.Expiry.IsZero() {
		works += "without an end: "
	} else {
		works += "until " + claims.Expiry.UTC().Format(time.RFC3339) + ": "
	}
	if claims.Secret == "" {
		return works + "it is bound to no secret and ends with the service account alone", nil
	}
	secret, err := r.From.Secret(ctx, account.Namespace, claims.Secret)
	if err != nil || secret == nil || slices.Contains(r.Keep, claims.Secret) {
		return "", err
	}
	if held := secret.Data[corev1.ServiceAccountTokenKey]; secret.Type == corev1.SecretTypeServiceAccountToken && string(held) != c.User.Token {
		return "", nil
	}
	return works + fmt.Sprintf("it ends with secret %s/%s, which meshctl did not make", account.Namespace, claims.Secret), nil
}

// endEarlier ends the tokens with which other clusters read the member, except the
// tokens of the Secrets in keep, and reports tokens that still work. had are the
// clusters of deleted or replaced remote secrets. It returns the number of deleted
// Secrets.
func (m *Member) endEarlier(
	ctx context.Context, keep []string, had []*remotesecret.Cluster, strangers []mesh.ClusterID, say func(string, ...any),
) (int, error) {
	account := m.Request.Account
	r := &Readers{From: m.Cluster, Namespace: account.Namespace, Keep: keep, OnlyOurs: true, Strangers: strangers, Say: say}
	r.Add(account.Name)
	for _, c := range had {
		if err := r.AddToken(c); err != nil {
			say("Warning: %s: what the secret of cluster %s held may still work: %v", m.Name, c.ID, err)
		}
	}
	ended, working, err := r.End(ctx)
	for _, w := range working {
		say("Warning: %s", w)
	}
	return ended, err
}

// strangers returns clusters that the members read but that are no members. They
// probably read the members, too, with the same account.
func strangers(ctx context.Context, members []*Member) ([]mesh.ClusterID, error) {
	var out []mesh.ClusterID
	for _, m := range members {
		read, err := m.RemoteClusters(ctx, m.Request.Account.Namespace)
		if err != nil {
			return nil, err
		}
		for i := range read {
			isMember := func(m *Member) bool { return m.Request.Cluster == read[i].ID }
			if !slices.ContainsFunc(members, isMember) {
				out = append(out, read[i].ID)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func join(ids []mesh.ClusterID) string {
	var out []string
	for _, id := range ids {
		out = append(out, string(id))
	}
	return strings.Join(out, ", ")
}
