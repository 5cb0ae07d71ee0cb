#!/bin/sh
# Sums the same buffers with Rondo's ring and with PyTorch's Gloo by turns and prints the ratios:
#
#   PYTHON=$(bench/peers/setup.sh) bench/allreduce.sh -worlds 2,4 -at-least 1
#
# See `go run ./bench/allreduce -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
exec go run ./bench/allreduce "$@"
