#!/bin/sh
# Fuzzes the targets of packages for a time each, or without packages those of all.
#
#   fuzz.sh TIME [FOLDER...]
set -eu
cd "$(dirname "$0")/.."
time=$1
shift
[ $# -gt 0 ] ||
	set -- $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u)
for folder in "$@"; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$folder"/*_test.go); do
		go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$folder"
	done
done
