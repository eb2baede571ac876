package inject

import (
	"fmt"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// followUser makes the redirection except the connections of the user that the proxy runs as, which
// the pod or a template of the user may have changed. Otherwise it would send the connections of
// Envoy back to Envoy.
func (p *injection) followUser(object map[string]any) {
	proxy := findContainer(object, proxyContainer)
	if proxy == nil || p.proxyless() || slices.Contains(p.templates, gatewayTemplate) {
		return
	}
	context, _ := proxy["securityContext"].(map[string]any)
	if context == nil {
		context = map[string]any{}
		proxy["securityContext"] = context
	}
	idOf := func(field string) string {
		if own := context[field]; own != nil {
			return fmt.Sprint(own)
		}
		return fmt.Sprint(proxyUser)
	}
	user, group := idOf("runAsUser"), idOf("runAsGroup")
	switch redirects := p.proxy.GetInterceptionMode(); {
	case redirects == meshv1alpha1.ProxyConfig_TPROXY:
		if user != "0" || group != fmt.Sprint(proxyUser) {
			p.warnf("container %s: user %s and group %s have no effect with interception mode TPROXY: only root may use the addresses of clients, and the redirection knows the proxy by group %d",
				proxyContainer, user, group, proxyUser)
			context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"] = 0, proxyUser, false
		}
		return
	case redirects == meshv1alpha1.ProxyConfig_REDIRECT && user != fmt.Sprint(proxyUser):
		if init := findContainer(object, initContainer); init != nil {
			args, _ := init["args"].([]any)
			if at := slices.Index(args, any("-u")); at >= 0 && at+1 < len(args) && args[at+1] == fmt.Sprint(proxyUser) {
				args[at+1] = user
			}
		}
	}
	p.warnUsers(user)
}

// warnUsers warns about containers of the application that run as the user of the proxy.
func (p *injection) warnUsers(proxy string) {
	for _, c := range p.apps() {
		var user *int64
		if s := p.pod.Spec.SecurityContext; s != nil {
			user = s.RunAsUser
		}
		if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
			user = s.RunAsUser
		}
		if user != nil && fmt.Sprint(*user) == proxy {
			p.warnf("container %s: it runs as user %s, as the proxy does: its connections bypass the mesh", c.Name, proxy)
		}
	}
}
