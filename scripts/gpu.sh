#!/usr/bin/env bash
# Packs bin/gpu: what a machine with an NVIDIA GPU needs to test and measure this tree, and nothing
# else of it, so that the folder can be carried there. Needs no GPU; one that is here is used.
#
#   gpu.sh [flag of bin/gpu/run.sh...]
#
# On that machine, which needs glibc, the driver and, to compare with it, python3 with torch:
#
#   bin/gpu/run.sh [-minutes 9.5] [-only tests,speed] [-text timemachine.txt] [-out results]
#
# It ends with a table; everything is in results/results.json and the logs beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "rondo: $*" >&2; }

toolkit=$(scripts/cuda.sh env)
eval "$toolkit"
export CGO_ENABLED=1
folder=bin/gpu

say "building for a GPU, into $folder"
rm -rf "$folder"
mkdir -p "$folder/programs/tests"
flags=(-buildvcs=false -tags "cuda,netgo,osusergo${TAGS:+,$TAGS}" -trimpath "-ldflags=-s -w")
go build "${flags[@]}" -o "$folder/programs/" ./cmd/rondo ./bench/gpu ./bench/textbook
# Those that compute; the kernels' own test reads their sources, which stay here.
for package in compute/cuda compute/cuda/driver; do
	if grep -lqE '^//go:build cuda' "$package"/*_test.go; then
		program=$folder/programs/tests/$(basename "$package").test
		go test -c "${flags[@]}" -o "$program" "./$package"
	fi
done
cp bench/peers/torch_gpu.py bench/peers/torch_lm.py "$folder/programs/"

# Compressed, for the folder is to be copied to another machine.
tar -C "$folder/programs" -cf - . | xz -T0 -4 >"$folder/programs.tar.xz"
rm -rf "$folder/programs"

cat >"$folder/run.sh" <<'END'
#!/bin/sh
# Tests and measures on this machine's GPU: run.sh -h lists the flags.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
parent=${RONDO_GPU_FOLDER:-${TMPDIR:-/tmp}/rondo-gpu-$(id -u)}
# RONDO_GPU_FOLDER may hold other things: only what an earlier run marked as its own is removed.
work=$parent/programs
mark=$work/made-by-run.sh
if [ -f "$mark" ]; then
	rm -rf "$work"
fi
mkdir -p "$parent"
mkdir "$work"
: >"$mark"
archive=$here/programs.tar.xz
if command -v xz >/dev/null; then
	tar -xJf "$archive" -C "$work"
else
	python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
		"$archive" "$work"
fi
exec "$work/gpu" -folder "$work" "$@"
END
chmod +x "$folder/run.sh"
say "packed: $(du -h "$folder/programs.tar.xz" | cut -f 1), $folder/run.sh"

if [ -e /dev/nvidiactl ]; then
	exec "$folder/run.sh" "$@"
fi
say "there is no GPU here: carry $folder to a machine that has one, and start run.sh there"
