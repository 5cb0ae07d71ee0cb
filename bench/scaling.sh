#!/bin/sh
# Trains the same model with Rondo and with PyTorch DDP on hosts of their own, network namespaces
# with links of a known rate, and prints how much of the workers' speed is left. Needs root.
#
#   PYTHON=$(bench/peers/setup.sh) bench/scaling.sh -at-least 0.95 -ratio 1.15
#
# See `go run ./bench/scaling -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
go build -o bin/bench-scaling ./bench/scaling
exec bin/bench-scaling "$@"
