#!/bin/sh
# Trains the same models with Rondo and with PyTorch by turns and prints how fast each is:
#
#   PYTHON=$(bench/peers/setup.sh) bench/compare.sh -quick         # README's table
#   PYTHON=$(bench/peers/setup.sh) bench/compare.sh -only lstm -at-least 1.8
#
# See `go run ./bench/compare -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
exec go run ./bench/compare "$@"
