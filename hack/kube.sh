#!/usr/bin/env bash
# Builds the programs that the tools of a module pin into a folder of .cache. It does so
# again only when that module or Go has changed.
#
#   hack/kube.sh            test/kube/tools: etcd, Kubernetes and kubectl, into .cache/kube
#   hack/kube.sh clusters   and test/clusters/tools: containerd and CoreDNS, into .cache/clusters
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

tmp=
trap '[ -z "$tmp" ] || rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# build MODULE TARGET
build() {
	local module=$1 target=$2 built version started
	built=$(go env GOVERSION && sha256sum "$module/go.mod" "$module/go.sum" "$module"/*/*.go)
	[ "$(cat "$target/built" 2>/dev/null)" != "$built" ] || return 0

	version=$(go -C "$module" list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null || true)
	mkdir -p "$target"
	tmp=$(mktemp -d "$target/new.XXXXXX")

	echo "hack/kube.sh: building the tools of $module, which takes some minutes once" >&2
	started=$SECONDS
	if ! CGO_ENABLED=0 go build -C "$module" -trimpath -tags no_btrfs,no_zfs,no_devmapper -ldflags "-s -w
		-X k8s.io/component-base/version.gitVersion=$version" -o "$PWD/$tmp/" tool; then
		echo "hack/kube.sh: the tools of $module do not build: their modules come from the Go module proxy (GOPROXY), and the build needs 4 GB of memory and 5 GB of disk" >&2
		exit 1
	fi
	[ ! -e "$tmp/server" ] || mv "$tmp/server" "$tmp/etcd" # named after its folder

	# Of a build that is only half in place the next run makes a whole one.
	rm -f "$target/built"
	mv -f "$tmp"/* "$target"
	printf '%s\n' "$built" >"$target/built"
	rmdir "$tmp"
	tmp=
	echo "hack/kube.sh: $target is complete after $((SECONDS - started)) s" >&2
}

build test/kube/tools .cache/kube
[ "${1:-}" != clusters ] || build test/clusters/tools .cache/clusters
