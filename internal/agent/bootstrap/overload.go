package bootstrap

import (
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const heapMonitor = "envoy.resource_monitors.fixed_heap"

const (
	// heapInterval is the time between two looks at the heap. Callers who do not read fill
	// hundreds of MiB in the default of a second.
	heapInterval = 100 * time.Millisecond
	// trackedStream is the power of two of the bytes from which Envoy knows what a stream holds. It
	// has eight classes of streams, each twice as large as the one before.
	trackedStream = 14
	// leastTimeout is the shortest of the timeouts that become shorter as the heap grows.
	leastTimeout = 5 * time.Second
)

// overloadManager bounds connections and, unless maxHeap is 0, the heap, before the kernel would
// kill Envoy with all connections. First Envoy resets the streams that hold the most, so that
// callers who do not read what they request harm themselves only. Then it returns free memory, and
// at last it refuses requests. A gateway, whose callers may be hostile, does so sooner than a sidecar,
// whose heap is often fuller without any load.
func (p *packer) overloadManager(maxHeap uint64, isGateway bool) *overloadv3.OverloadManager {
	m := &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name: "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: p.any(
			&downstreamv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: 1<<31 - 1})},
	}}}
	if maxHeap == 0 {
		return m
	}
	m.RefreshInterval = durationpb.New(heapInterval)
	m.BufferFactoryConfig = &overloadv3.BufferFactoryConfig{MinimumAccountToTrackPowerOfTwo: trackedStream}
	m.ResourceMonitors = append(m.ResourceMonitors, &overloadv3.ResourceMonitor{
		Name: heapMonitor,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: p.any(
			&fixedheapv3.FixedHeapConfig{MaxHeapSizeBytes: maxHeap})},
	})
	resets, shrinks := 0.85, 0.9
	if isGateway {
		resets, shrinks = 0.6, 0.6
	}
	m.Actions = []*overloadv3.OverloadAction{
		// Envoy resets 50 streams each time that the state of the action changes, which it does up to
		// the whole heap. The nearer that is, the more classes of streams it resets.
		scaledAction("envoy.overload_actions.reset_high_memory_stream", resets, 1),
		p.reducedTimeouts(scaledAction("envoy.overload_actions.reduce_timeouts", resets, 0.9)),
		thresholdAction("envoy.overload_actions.shrink_heap", shrinks),
		thresholdAction("envoy.overload_actions.stop_accepting_requests", 0.95),
	}
	return m
}

// reducedTimeouts lets an action end idle connections, slow handshakes, and requests of gateways of
// which nothing moves, sooner. Envoy cannot reset requests of HTTP/1.1 by what they hold.
func (p *packer) reducedTimeouts(a *overloadv3.OverloadAction) *overloadv3.OverloadAction {
	var timers []*overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer
	for _, timer := range []overloadv3.ScaleTimersOverloadActionConfig_TimerType{
		overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_CONNECTION_IDLE,
		overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_STREAM_IDLE,
		overloadv3.ScaleTimersOverloadActionConfig_TRANSPORT_SOCKET_CONNECT,
	} {
		timers = append(timers, &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{
			Timer:          timer,
			OverloadAdjust: &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer_MinTimeout{MinTimeout: durationpb.New(leastTimeout)},
		})
	}
	a.TypedConfig = p.any(&overloadv3.ScaleTimersOverloadActionConfig{TimerScaleFactors: timers})
	return a
}

// thresholdAction returns an action at a share of the heap.
func thresholdAction(name string, share float64) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: name, Triggers: []*overloadv3.Trigger{{
		Name:         heapMonitor,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: share}},
	}}}
}

// scaledAction returns an action that begins at a share of the heap and is complete at another.
func scaledAction(name string, from, to float64) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: name, Triggers: []*overloadv3.Trigger{{
		Name:         heapMonitor,
		TriggerOneof: &overloadv3.Trigger_Scaled{Scaled: &overloadv3.ScaledTrigger{ScalingThreshold: from, SaturationThreshold: to}},
	}}}
}
