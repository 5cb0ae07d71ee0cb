#!/bin/sh
# Runs every test with the race detector, then the one that its memory would upset without it, and
# those of the packages that the pure-Go build changes, or that stand on them, in that build, and at
# last those that the tag cuda changes.
set -eu
cd "$(dirname "$0")/.."

cgo=$(scripts/native.sh)
race=-race
if [ "$cgo" = 0 ]; then
	echo "rondo: testing without the race detector, which needs a C compiler" >&2
	race=
fi

CGO_ENABLED=$cgo go test $race -timeout 15m ./...
[ -z "$race" ] || CGO_ENABLED=$cgo go test -timeout 5m -run TestMemoryAgainstWorkers \
	./cmd/internal/job

echo "rondo: and the pure-Go build:" >&2
CGO_ENABLED=0 go test -timeout 10m ./compute/... ./model/... ./train/...

scripts/test-cuda.sh build test kernels
