#!/usr/bin/env bash
# Counts phrases that make comments hard to read, per 1,000 comment lines of the
# Go files that git tracks. Good Go code has 0 to 1 of each.
#
#   hack/english.sh          # the whole tree
#   hack/english.sh internal/cli
set -euo pipefail
cd "$(dirname "$0")/.."

comments=$(git ls-files -z -- "${1:-.}" | grep -z '\.go$' | xargs -0 grep -hE '^\s*//' || true)
lines=$(printf '%s\n' "$comments" | wc -l)
printf '%d comment lines; per 1,000 of them:\n' "$lines"
count() {
  printf '%s\n' "$comments" | { grep -oiE "$2" || true; } | wc -l |
    awk -v n="$lines" -v name="$1" '{ printf "  %-22s %5.1f (%d)\n", name, 1000 * $1 / n, $1 }'
}
count 'that of, those of' '\b(that|those) of\b'
count 'what is, was, are, it' '\bwhat (is|was|are|it)\b'
count 'tell, tells, told' '\b(tells?|told)\b'
