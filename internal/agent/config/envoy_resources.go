package config

import meshv1alpha1 "istio.io/api/mesh/v1alpha1"

// agentMemory is the part of a container's memory that the heap of Envoy does not get, in
// bytes: for the agent, stacks and buffers of the kernel.
const agentMemory = 64 << 20

// envoyResources sets the threads and the memory of Envoy by the limits of the container.
func envoyResources(cfg *Config, pc *meshv1alpha1.ProxyConfig, in *Input) {
	if pc.GetConcurrency() == nil {
		cfg.Concurrency = min(in.CPULimit, maxConcurrency)
	}
	cfg.MaxHeap = in.MemoryLimit / 2
	if in.MemoryLimit > 2*agentMemory {
		cfg.MaxHeap = in.MemoryLimit - agentMemory
	}
}
