package kube

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Contexts returns the names of the kubeconfig's contexts, sorted.
func Contexts(o Options) ([]string, error) {
	_, config, err := o.read()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(config.Contexts)), nil
}

// ContextOf returns the first context of the kubeconfig, by name, whose API server has the address
// or, if none has it, the certificate authorities, in PEM. An API server may have one address
// for people and another for control planes. ContextOf returns "" if there is none.
func ContextOf(o Options, server string, authorities []byte) (string, error) {
	rules, config, err := o.read()
	if err != nil {
		return "", err
	}
	same := ""
	for _, name := range slices.Sorted(maps.Keys(config.Contexts)) {
		access, err := clientConfig(rules, config, name)
		if err != nil {
			continue // another context may do
		}
		if strings.TrimSuffix(access.Host, "/") == strings.TrimSuffix(server, "/") {
			return name, nil
		}
		if err := rest.LoadTLSFiles(access); err != nil || same != "" || len(authorities) == 0 {
			continue
		}
		if bytes.Equal(bytes.TrimSpace(access.CAData), bytes.TrimSpace(authorities)) {
			same = name
		}
	}
	return same, nil
}

func clientConfig(rules *clientcmd.ClientConfigLoadingRules, config *clientcmdapi.Config, context string) (*rest.Config, error) {
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	return clientcmd.NewNonInteractiveClientConfig(*config, context, overrides, rules).ClientConfig()
}
