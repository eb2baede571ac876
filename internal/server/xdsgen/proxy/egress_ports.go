package proxy

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// BindsPort reports whether the proxy listens for an egress listener itself. Otherwise it takes
// connections that are redirected to the proxy.
func BindsPort(e *networkingv1alpha3.IstioEgressListener, captured bool) bool {
	return !captured || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE || IsUnixListener(e)
}

// IsBound reports whether an egress listener without a port takes connections to one address
// only.
func IsBound(e *networkingv1alpha3.IstioEgressListener) bool {
	return e.GetBind() != "" || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
}

// HasNoPort reports whether an egress listener is for all ports without a listener of their own.
func HasNoPort(e *networkingv1alpha3.IstioEgressListener) bool {
	return e.GetPort().GetNumber() == 0 && !IsUnixListener(e)
}

// IsUnixListener reports whether an egress listener of a Sidecar listens at a Unix socket.
func IsUnixListener(e *networkingv1alpha3.IstioEgressListener) bool {
	return strings.HasPrefix(e.GetBind(), snapshot.UnixScheme)
}
