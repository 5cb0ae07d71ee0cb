#!/bin/sh
# Holds what `rondo bench simulate` is made of against real rings: processes on hosts of their own,
# network namespaces with links of a known rate. Needs root.
#
#   bench/simulate.sh -at-most 0.1
#
# See `go run ./bench/simulate -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
go build -o bin/bench-simulate ./bench/simulate
exec bin/bench-simulate "$@"
