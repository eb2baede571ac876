package fields

import (
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// ConnectionPoolFault checks the connection pool of a DestinationRule or of MeshConfig.
func ConnectionPoolFault(field string, p *networkingv1alpha3.ConnectionPoolSettings) *Error {
	tcp, http := p.GetTcp(), p.GetHttp()
	keep := tcp.GetTcpKeepalive()
	alive := http.GetHttp2KeepAlive()
	var both *Error
	if alive != nil && (alive.Interval == nil || alive.Timeout == nil) {
		both = Faultf(field+".http.http2KeepAlive", "needs an interval and a timeout")
	}
	return AllFaults(
		countFault(field+".tcp.maxConnections", tcp.GetMaxConnections()),
		DurationFault(field+".tcp.connectTimeout", tcp.GetConnectTimeout(), time.Millisecond),
		DurationFault(field+".tcp.maxConnectionDuration", tcp.GetMaxConnectionDuration(), time.Millisecond),
		DurationFault(field+".tcp.idleTimeout", tcp.GetIdleTimeout(), 0),
		DurationFault(field+".tcp.tcpKeepalive.time", keep.GetTime(), time.Second),
		DurationFault(field+".tcp.tcpKeepalive.interval", keep.GetInterval(), time.Second),
		countFault(field+".http.http1MaxPendingRequests", http.GetHttp1MaxPendingRequests()),
		countFault(field+".http.http2MaxRequests", http.GetHttp2MaxRequests()),
		countFault(field+".http.maxRequestsPerConnection", http.GetMaxRequestsPerConnection()),
		countFault(field+".http.maxRetries", http.GetMaxRetries()),
		countFault(field+".http.maxConcurrentStreams", http.GetMaxConcurrentStreams()),
		DurationFault(field+".http.idleTimeout", http.GetIdleTimeout(), 0),
		both,
		DurationFault(field+".http.http2KeepAlive.interval", alive.GetInterval(), time.Millisecond),
		DurationFault(field+".http.http2KeepAlive.timeout", alive.GetTimeout(), time.Millisecond),
	)
}

// OutlierDetectionFault checks the outlier detection of a DestinationRule or of MeshConfig.
func OutlierDetectionFault(field string, o *networkingv1alpha3.OutlierDetection) *Error {
	percent := func(name string, n int32) *Error {
		if n < 0 || n > 100 {
			return Faultf(field+"."+name, "%d is not a percentage", n)
		}
		return nil
	}
	var codes *Error
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		if code < 100 || code > 599 {
			codes = codes.And(Faultf(At(field+".outlierDetectionHttpErrorCodes", i), "%d is not a status of HTTP", code))
		}
	}
	return AllFaults(
		DurationFault(field+".interval", o.GetInterval(), time.Millisecond),
		DurationFault(field+".baseEjectionTime", o.GetBaseEjectionTime(), time.Millisecond),
		percent("maxEjectionPercent", o.GetMaxEjectionPercent()),
		percent("minHealthPercent", o.GetMinHealthPercent()),
		codes,
	)
}
