#!/bin/sh
# Trains one model with each of the ways in which gradients can travel:
#
#   bench/compression.sh tinyshakespeare.txt
#
# in a network namespace of its own, so that nobody else's bytes are counted. See
# `go run ./bench/compression -h` for the flags, which go before the corpus.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
program=$(mktemp)
trap 'rm -f "$program"' EXIT
go build -o "$program" ./bench/compression
unshare --user --map-root-user --net sh -c 'ip link set lo up && exec "$@"' sh "$program" "$@"
