package bootstrap

import (
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
)

const heapMonitor = "envoy.resource_monitors.fixed_heap"

// overloadManager bounds connections and, unless maxHeap is 0, the heap: Envoy first returns
// free memory, then refuses requests, before the kernel would kill it with all connections.
func (p *packer) overloadManager(maxHeap uint64) *overloadv3.OverloadManager {
	m := &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name: "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: p.any(
			&downstreamv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: 1<<31 - 1})},
	}}}
	if maxHeap == 0 {
		return m
	}
	m.ResourceMonitors = append(m.ResourceMonitors, &overloadv3.ResourceMonitor{
		Name: heapMonitor,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: p.any(
			&fixedheapv3.FixedHeapConfig{MaxHeapSizeBytes: maxHeap})},
	})
	for _, action := range []struct {
		name  string
		share float64 // of maxHeap
	}{
		{"envoy.overload_actions.shrink_heap", 0.9},
		{"envoy.overload_actions.stop_accepting_requests", 0.95},
	} {
		m.Actions = append(m.Actions, &overloadv3.OverloadAction{
			Name: action.name,
			Triggers: []*overloadv3.Trigger{{
				Name:         heapMonitor,
				TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: action.share}},
			}},
		})
	}
	return m
}
