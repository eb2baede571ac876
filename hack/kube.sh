#!/usr/bin/env bash
# Builds the Kubernetes that test/kube/tools/go.mod pins into .cache/kube: etcd,
# kube-apiserver, kube-controller-manager and kubectl. It does so again only
# when that module or Go has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

module=test/kube/tools
target=.cache/kube

fail() {
	echo "make kube: $*" >&2
	exit 1
}

built=$(go env GOVERSION && sha256sum "$module/go.mod" "$module/go.sum")
[ "$(cat "$target/built" 2>/dev/null)" != "$built" ] || exit 0

version=$(go -C "$module" list -m -f '{{.Version}}' k8s.io/kubernetes)
mkdir -p "$target"
tmp=$(mktemp -d "$target/new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

echo "make kube: building Kubernetes $version, which takes some minutes once" >&2
started=$SECONDS
CGO_ENABLED=0 go build -C "$module" -trimpath -ldflags "-s -w
	-X k8s.io/component-base/version.gitVersion=$version" -o "$PWD/$tmp/" tool ||
	fail "Kubernetes $version does not build: its modules come from the Go module proxy (GOPROXY), and the build needs 4 GB of memory and 5 GB of disk"
mv "$tmp/server" "$tmp/etcd" # named after its folder

# Of a build that is only half in place the next run makes a whole one.
rm -f "$target/built"
mv -f "$tmp"/* "$target"
printf '%s\n' "$built" >"$target/built"
echo "make kube: $target has Kubernetes $version after $((SECONDS - started)) s" >&2
