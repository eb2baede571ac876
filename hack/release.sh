#!/usr/bin/env bash
# Builds the release VERSION into bin/release: an archive for each platform with the
# binary, its manual pages and the licence, an SBOM of each binary (CycloneDX), SHA256SUMS,
# the manifest for krew, and the provenance of all files (in-toto, SLSA). Two builds of one
# commit have the same bytes. RELEASE_KEY, a file with a private key that openssl reads, such as
# one of ECDSA with P-256, signs SHA256SUMS and the provenance (DSSE).
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: hack/release.sh VERSION [OS/ARCH...]}
shift
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
sbom=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
commit=$(git rev-parse HEAD)
epoch=$(git log -1 --format=%ct)
source=https://github.com/meshctl/meshctl
[ -z "${RELEASE_KEY:-}" ] || RELEASE_KEY=$(realpath "$RELEASE_KEY")
out=${RELEASE_DIR:-bin/release}

rm -rf "$out"
mkdir -p "$out/man"
out=$(cd "$out" && pwd)
go -C tools/man run . "$out/man"

for platform in "$@"; do
	os=${platform%/*} arch=${platform#*/}
	echo "make release: $platform" >&2
	folder=$out/meshctl-$version-$os-$arch
	mkdir -p "$folder"
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -tags grpcnotrace -o "$folder/meshctl" \
		-ldflags "-s -w -X github.com/meshctl/meshctl/internal/cli.version=$version" ./cmd/meshctl
	go run "$sbom" bin -json -noserial -notimestamp -version "$version" -output "$folder.cdx.json" "$folder/meshctl"
	cp -r LICENSE "$out/man" "$folder/"
	tar -C "$out" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -c "$(basename "$folder")" | gzip -n >"$folder.tar.gz"
	rm -r "$folder"
done
rm -r "$out/man"

cd "$out"
platforms=$(sha256sum ./*.tar.gz | while read -r sum file; do
	name=$(basename "$file" .tar.gz) rest=${file%.tar.gz}
	arch=${rest##*-} rest=${rest%-*}
	cat <<EOF
  - selector: {matchLabels: {os: ${rest##*-}, arch: $arch}}
    uri: $source/releases/download/$version/$name.tar.gz
    sha256: $sum
    bin: meshctl
    files: [{from: "$name/*", to: .}]
EOF
done)
cat >mesh.yaml <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {name: mesh}
spec:
  version: $version
  homepage: $source
  shortDescription: Run and explain a service mesh of several clusters
  description: |
    meshctl as a plugin of kubectl: control plane, certificates, remote secrets, and the
    configuration of every Envoy.
  platforms:
$platforms
EOF
sums=$(sha256sum ./* | sed 's| \./| |')
echo "$sums" >SHA256SUMS
jq -n --arg version "$version" --arg commit "$commit" --arg go "$(go env GOVERSION)" --arg source "$source" --rawfile sums SHA256SUMS '{
  _type: "https://in-toto.io/Statement/v1",
  predicateType: "https://slsa.dev/provenance/v1",
  subject: [$sums | split("\n")[] | select(. != "") | split("  ") | {name: .[1], digest: {sha256: .[0]}}],
  predicate: {
    buildDefinition: {
      buildType: ($source + "/hack/release.sh"),
      externalParameters: {version: $version},
      internalParameters: {go: $go},
      resolvedDependencies: [{uri: ("git+" + $source), digest: {gitCommit: $commit}}]
    },
    runDetails: {builder: {id: ($source + "/Makefile")}}
  }
}' >provenance.json

if [ -z "${RELEASE_KEY:-}" ]; then
	echo "make release: the files are not signed, as RELEASE_KEY names no key" >&2
	exit 0
fi
sign() { openssl dgst -sha256 -sign "$RELEASE_KEY" | base64 -w0; }
sign <SHA256SUMS >SHA256SUMS.sig
type=application/vnd.in-toto+json
signature=$({ printf 'DSSEv1 %d %s %d ' ${#type} $type "$(wc -c <provenance.json)" && cat provenance.json; } | sign)
jq -cn --arg type $type --arg payload "$(base64 -w0 provenance.json)" --arg sig "$signature" \
	'{payloadType: $type, payload: $payload, signatures: [{sig: $sig}]}' >provenance.intoto.jsonl
openssl pkey -in "$RELEASE_KEY" -pubout -out release.pub
