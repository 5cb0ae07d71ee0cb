#!/bin/sh
# Measures how much of the gradient's way around the ring is hidden behind the backward pass, over a
# link between two network namespaces that is shaped by `tc` (root):
#
#   bench/overlap.sh -share 0.8 -at-most 0.15
#
# See `go run ./bench/overlap -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
exec go run ./bench/overlap "$@"
