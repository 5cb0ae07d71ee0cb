#!/bin/sh
# Fails, naming them, if Go files are not as gofmt writes them.
set -eu
cd "$(dirname "$0")/.."

unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	echo "rondo: not formatted; run gofmt -w on:" >&2
	echo "$unformatted" >&2
	exit 1
fi
