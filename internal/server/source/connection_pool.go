package source

import (
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

func checkConnectionPool(field string, p *networkingv1alpha3.ConnectionPoolSettings) *FieldError {
	tcp, http := p.GetTcp(), p.GetHttp()
	keep := tcp.GetTcpKeepalive()
	alive := http.GetHttp2KeepAlive()
	var both *FieldError
	if alive != nil && (alive.Interval == nil || alive.Timeout == nil) {
		both = faultf(field+".http.http2KeepAlive", "needs an interval and a timeout")
	}
	return allFaults(
		countFault(field+".tcp.maxConnections", tcp.GetMaxConnections()),
		durationFault(field+".tcp.connectTimeout", tcp.GetConnectTimeout(), time.Millisecond),
		durationFault(field+".tcp.maxConnectionDuration", tcp.GetMaxConnectionDuration(), time.Millisecond),
		durationFault(field+".tcp.idleTimeout", tcp.GetIdleTimeout(), 0),
		durationFault(field+".tcp.tcpKeepalive.time", keep.GetTime(), time.Second),
		durationFault(field+".tcp.tcpKeepalive.interval", keep.GetInterval(), time.Second),
		countFault(field+".http.http1MaxPendingRequests", http.GetHttp1MaxPendingRequests()),
		countFault(field+".http.http2MaxRequests", http.GetHttp2MaxRequests()),
		countFault(field+".http.maxRequestsPerConnection", http.GetMaxRequestsPerConnection()),
		countFault(field+".http.maxRetries", http.GetMaxRetries()),
		countFault(field+".http.maxConcurrentStreams", http.GetMaxConcurrentStreams()),
		durationFault(field+".http.idleTimeout", http.GetIdleTimeout(), 0),
		both,
		durationFault(field+".http.http2KeepAlive.interval", alive.GetInterval(), time.Millisecond),
		durationFault(field+".http.http2KeepAlive.timeout", alive.GetTimeout(), time.Millisecond),
	)
}

func checkOutlierDetection(field string, o *networkingv1alpha3.OutlierDetection) *FieldError {
	percent := func(name string, n int32) *FieldError {
		if n < 0 || n > 100 {
			return faultf(field+"."+name, "%d is not a percentage", n)
		}
		return nil
	}
	var codes *FieldError
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		if code < 100 || code > 599 {
			codes = codes.and(faultf(at(field+".outlierDetectionHttpErrorCodes", i), "%d is not a status of HTTP", code))
		}
	}
	return allFaults(
		durationFault(field+".interval", o.GetInterval(), time.Millisecond),
		durationFault(field+".baseEjectionTime", o.GetBaseEjectionTime(), time.Millisecond),
		percent("maxEjectionPercent", o.GetMaxEjectionPercent()),
		percent("minHealthPercent", o.GetMinHealthPercent()),
		codes,
	)
}
