#!/usr/bin/env bash
# Packs bin/gpu: what a machine with an NVIDIA GPU needs to test and measure this tree, and nothing
# else of it, so that the folder can be carried there. Needs no GPU; one that is here is used.
#
#   gpu.sh               packs and, where there is a GPU, runs all three commands
#   gpu.sh dry           packs and tries the commands on the emulated driver, with small shapes
#
# On that machine, which needs glibc, the driver, tar and gzip, and no network:
#
#   bin/gpu/run.sh [-out folder] [-only core,rondo] facts|tests|tools
#
# Each ends within nine minutes with a table, and leaves rondo-gpu-COMMAND.tar.gz, of 16 MiB at
# most, in the folder that -out or the variable OUT names. RONDO_GPU_TEXT, The Time Machine's text,
# is packed too; without it the textbook's perplexities are not measured.
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
# The kernels' own test reads their sources, which stay here.
for package in compute/cuda compute/cuda/driver; do
	if grep -lqE '^//go:build cuda' "$package"/*_test.go; then
		program=$folder/programs/tests/$(basename "$package").test
		go test -c "${flags[@]}" -o "$program" "./$package"
	fi
done
cp -R compute/testdata "$folder/programs/" # beside the tests' folder, as it is in the tree
cp bench/peers/torch_gpu.py bench/peers/torch_lm.py "$folder/programs/"
if [ -n "${RONDO_GPU_TEXT:-}" ]; then
	cp "$RONDO_GPU_TEXT" "$folder/programs/text.txt"
fi

# For a kernel that hangs.
scripts/kernels.sh debug "$folder/programs/debug"

# Compressed, for the folder is to be copied to another machine, which may have no xz or zstd: the
# program gpu, as gzip, unpacks the others.
tar -C "$folder/programs" --exclude=./gpu -cf - . |
	"$folder/programs/gpu" compress >"$folder/programs.tar.zst"
gzip -9 <"$folder/programs/gpu" >"$folder/gpu.gz"
rm -rf "$folder/programs"

cat >"$folder/run.sh" <<'END'
#!/bin/sh
# Tests and measures on this machine's GPU: run.sh facts|tests|tools; -h lists the flags.
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
gzip -dc "$here/gpu.gz" >"$work/gpu"
chmod +x "$work/gpu"
"$work/gpu" decompress <"$here/programs.tar.zst" | tar -xf - -C "$work"
exec "$work/gpu" -folder "$work" "$@"
END
chmod +x "$folder/run.sh"
# With the tree itself, of 16 MiB, it is to fit into 64 MiB.
most=$((48 << 20))
bytes=$(cat "$folder"/programs.tar.zst "$folder"/gpu.gz | wc -c)
say "packed: $((bytes >> 20)) MiB, $folder/run.sh"
if [ "$bytes" -gt $most ]; then
	say "the pack may have $((most >> 20)) MiB"
	exit 1
fi

flags=""
if [ "${1:-}" = dry ]; then
	flags=-emulated
elif [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	say "there is no GPU here: carry $folder to a machine that has one, and start run.sh there"
	exit
fi
failed=""
for command in facts tests tools; do
	"$folder/run.sh" $flags -out "${OUT:-$folder}" $command || failed+=" $command"
done
if [ -n "$failed" ]; then
	say "FAILED:$failed"
	exit 1
fi
