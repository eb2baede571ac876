.DEFAULT_GOAL := help
SHELL := bash

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Another Envoy, 1.36 or later, for make demo; tests use the pinned one.
ENVOY ?=
# Arguments of make demo, make bench and make soak, as in make demo ARGS=--once.
ARGS ?=
# The revision that make bench-compare compares with.
REV ?= HEAD
# How long make fuzz runs each target. Inputs are made smaller by a number of
# tries: otherwise that alone may take a minute for each.
FUZZTIME ?= 30s
# How long make soak runs.
SOAKTIME ?= 10m

# Tests wait more than they compute, so more of them run at a time than there are
# processors: packages (-p), and tests that allow it (-parallel).
JOBS := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# The race detector needs a C compiler, the rest does not.
RACE := $(if $(shell command -v "$$(go env CC)"),-race)
LINT := go tool -modfile=tools/go.mod golangci-lint

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r target about; do \
		printf '  make %-13s %s\n' "$$target" "$$about"; done

# Without the pages of gRPC about itself, which nobody can open: they bring
# templates, and with these the linker has to keep every method of every type.
TAGS := grpcnotrace

# All targets build alike, so that they share what is compiled, also with clones in other folders.
export GOFLAGS += -trimpath -tags=$(TAGS)

# Without vet, which is one of the linters of make lint.
GOTEST := go test -vet=off

# Where make build puts the program.
OUT := bin

.PHONY: build
build: ## Build bin/meshctl
	CGO_ENABLED=0 go build -o $(OUT)/meshctl \
		-ldflags '-s -w -X github.com/meshctl/meshctl/internal/cli.version=$(VERSION)' ./cmd/meshctl

.PHONY: envoy
envoy: ## Get the pinned Envoy into .cache/envoy (with ENVOY=path: check that one)
	@hack/envoy.sh $(if $(ENVOY),"$(ENVOY)")

.PHONY: kube
kube: ## Build the pinned Kubernetes API into .cache/kube
	@hack/kube.sh

# The name of the image; install's default is localhost/meshctl:VERSION.
IMAGE ?= localhost/meshctl:$(VERSION)
# The socket of another containerd that make image-load imports into.
CONTAINERD ?=

.PHONY: image
image: build envoy ## Build the container image IMAGE as the OCI archive bin/image.tar
	@go -C tools/image run . -root ../.. -out bin/image.tar -name '$(IMAGE)'

.PHONY: image-load
image-load: image ## Import the image into the nodes of make clusters, or the containerd at CONTAINERD
	$(if $(CONTAINERD),ctr -a '$(CONTAINERD)' -n k8s.io images import,go run ./test/clusters/cmd import bin/clusters) bin/image.tar

.PHONY: clusters
clusters: ## Start two Kubernetes clusters with pods on this machine, as root
	@hack/kube.sh clusters
	@mkdir -p bin
	@go run ./test/clusters/cmd up bin/clusters

.PHONY: clusters-down
clusters-down: ## Stop the clusters of make clusters and remove all that they made
	@go run ./test/clusters/cmd down bin/clusters

.PHONY: e2e
e2e: ## Install a mesh in two clusters with pods, as docs/get-started.md does, as root
	@hack/envoy.sh
	@hack/kube.sh clusters
	$(GOTEST) -count=1 -timeout=30m -v ./test/clusters

.PHONY: e2e-faults
e2e-faults: ## Test traffic between two clusters with pods through faults and upgrades, as root, for an hour
	@hack/envoy.sh
	@hack/kube.sh clusters
	$(GOTEST) -count=1 -timeout=30m -v -run '^TestClocks$$' ./test/e2e -clocks
	$(GOTEST) -count=1 -timeout=90m -v -run '^(TestFaults|TestSingleNetwork|TestPrimaryRemote|TestExternalControlPlane|TestWithIstio|TestThreeClusters)$$' ./test/clusters -faults

.PHONY: e2e-soak
e2e-soak: ## Change two clusters with pods and traffic for SOAKTIME (10m), and test that no process grows, as root
	@hack/envoy.sh
	@hack/kube.sh clusters
	$(GOTEST) -count=1 -timeout=0 -v -run '^TestSoak$$' ./test/clusters -soak $(SOAKTIME)

.PHONY: release
release: ## Build archives for Linux and macOS, SBOMs, checksums and the krew manifest of VERSION in bin/release, signed with RELEASE_KEY
	hack/release.sh '$(VERSION)'

.PHONY: vuln
vuln: ## Search the modules for known vulnerabilities, where vuln.go.dev (or GOVULNDB) can be reached
	@hack/vuln.sh

.PHONY: charts
charts: ## Generate the Helm charts and the Kustomize base in deploy
	go -C tools/chart run .

.PHONY: demo
demo: build envoy ## Run a two-cluster mesh on this machine (ARGS=--once checks it and stops)
	bin/meshctl demo --envoy $(if $(ENVOY),"$(ENVOY)",.cache/envoy/envoy) $(ARGS)

.PHONY: unit
unit: ## Run the fast tests: offline, without Envoy
	$(GOTEST) -short -p $(JOBS) -parallel $(JOBS) ./cmd/... ./internal/...

.PHONY: test
test: ## Get what is missing and run all tests
	@hack/envoy.sh
	@hack/kube.sh $(if $(filter 0,$(shell id -u)),clusters)
	@go run ./test/clusters/cmd check
	@$(if $(RACE),,echo 'make test: no C compiler, so the tests run without the race detector' >&2)
	@# The targets below need these packages. This compiles them without linking programs.
	go list -export $(RACE) ./... > /dev/null
	@$(MAKE) --no-print-directory -j2 -k test-packages test-processes test-models

# Tests with Envoys and nodes mostly wait for other processes, so they run beside the tests of
# packages, which need the processors. The latter have a lower priority: requests that wait for
# compilers would fail.
.PHONY: test-processes
test-processes:
	$(GOTEST) $(RACE) -shuffle=on -count=1 -timeout=40m -p $(JOBS) -parallel $(JOBS) ./test/...
	@# A thousand clients, and thousands of meshes one after another: too slow with the race detector.
	$(if $(RACE),$(GOTEST) -count=1 -timeout=20m ./test/stall ./test/fields)

.PHONY: test-packages
test-packages: NICE := nice -n 15
test-packages:
	$(NICE) $(GOTEST) $(RACE) -shuffle=on -count=1 -timeout=40m -p $(JOBS) -parallel $(JOBS) ./cmd/... ./internal/... ./examples/...
	@# A thousand processes: too slow with the race detector, which would watch these.
	$(if $(RACE),$(NICE) $(GOTEST) -count=1 -timeout=10m -run '^TestStories$$' ./internal/cli/commands)
	$(NICE) go -C tools/image test -count=1 ./...
	$(NICE) go -C tools/chart test -count=1 ./...
	$(NICE) go -C tools/man test -count=1 ./...

# More of the models: the tests of packages run a few seeds of each. It starts when one of the other
# two ends.
.PHONY: test-models
test-models:
	nice -n 15 $(MAKE) --no-print-directory models MESHES=10

# How many random sets of policies and random meshes make models compares with the models.
POLICIES ?= 1000
MESHES ?= 100

.PHONY: models
models: ## Compare POLICIES (1000) sets of policies and MESHES (100) random meshes with their models
	$(GOTEST) -count=1 -timeout=60m -run '^TestRandomPolicies$$' ./internal/server/xdsgen/rbac -seeds $(POLICIES)
	$(GOTEST) -count=1 -timeout=60m -run '^TestIncrementalEqualsFull$$' ./internal/server/xds -seeds $(MESHES)
	$(GOTEST) -count=1 -timeout=60m -run '^TestModel$$' ./internal/server -seeds $(MESHES)

.PHONY: bench
bench: build envoy kube ## Measure the control plane beside a go-control-plane snapshot cache (ARGS=-help lists flags)
	go run ./test/load -meshctl bin/meshctl -revision $(VERSION) -out .cache/bench/$(VERSION).json $(ARGS)

.PHONY: bench-compare
bench-compare: ## Compare the figures that make bench kept for REV with those of this revision
	@go run ./test/load -compare ".cache/bench/$$(git describe --tags --always $(REV)).json" -out .cache/bench/$(VERSION).json

.PHONY: soak
soak: ## Change everything for SOAKTIME (10m), then check proxies, goroutines, memory and descriptors
	$(GOTEST) -count=1 -timeout=0 -v -run '^TestSoak$$' ./internal/server -soak $(SOAKTIME) $(ARGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@set -euo pipefail; grep -rl --include='*_test.go' '^func Fuzz' internal | xargs -rn1 dirname | sort -u | while read -r dir; do \
		$(GOTEST) -list '^Fuzz' "./$$dir" | grep '^Fuzz' | while read -r target; do \
			$(GOTEST) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "./$$dir"; done; done

.PHONY: lint
lint: ## Run the linters, and check that the modules of tools know all modules that they need
	$(LINT) run
	@for m in chart image man; do go -C tools/$$m list -deps ./... > /dev/null || exit 1; done

.PHONY: fmt
fmt: ## Format the code
	$(LINT) fmt

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf bin .cache
