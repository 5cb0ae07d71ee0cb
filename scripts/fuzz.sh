#!/bin/sh
# Fuzzes the targets of packages for a time each, or without packages those of all: as many at once
# as there are processors, each on one.
#
#   fuzz.sh TIME [FOLDER...]
set -eu
cd "$(dirname "$0")/.."
time=$1
shift
[ $# -gt 0 ] ||
	set -- $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u)
for folder in "$@"; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$folder"/*_test.go | sed "s|^|$folder |"
done | xargs -r -P "$(getconf _NPROCESSORS_ONLN)" -n 2 sh -c 'go test -vet=off -run "^\$" \
	-parallel 1 -fuzz "^$3\$" -fuzztime "$1" "./$2" || {
		echo "fuzz.sh: $3 of $2 failed" >&2
		exit 1
	}' sh "$time"
