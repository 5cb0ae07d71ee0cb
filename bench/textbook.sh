#!/bin/sh
# Trains the textbook's models on a corpus and holds them against limits:
#
#   bench/textbook.sh timemachine.txt
#
# See `go run ./bench/textbook -h` for the flags, which go before the corpus.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
exec go run ./bench/textbook "$@"
