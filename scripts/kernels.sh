#!/usr/bin/env bash
# Compiles the CUDA kernels of compute/cuda/kernels to PTX, which is committed and embedded. A file
# is kept only if it differs from the same module's file for the architecture below.
#
#   kernels.sh           into compute/cuda/kernels/ptx
#   kernels.sh debug FOLDER
#                        a debug build of the persistent kernels for 8.0 and newer, into the folder:
#                        it bounds how often a block looks for what another writes (see
#                        compute/cuda/watch.go for RONDO_CUDA_KERNELS and RONDO_CUDA_SPINS)
#   kernels.sh check     elsewhere, and fails if what is committed differs; then assembles it for
#                        every architecture and fails if a kernel spills registers, keeps arrays in
#                        local memory, or takes so many registers that its block cannot start
#
# What has been compiled or looked at once is kept under ${XDG_CACHE_HOME:-~/.cache}/rondo/ptx for
# 30 days, by the hash of all that it was made from. Exit status: that of scripts/cuda.sh (3: there
# can be no compiler here), or 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sources=compute/cuda/kernels
architectures="70 80 90" # ascending; the first is ptx.go's lowest
flags="-std=c++17 -O3 -allow-unsupported-compiler"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rondo/ptx

# allowed KERNEL ARCHITECTURE succeeds for a kernel that may use local memory; each with its reason.
allowed() {
	case "$1 $2" in
	esac
	return 1
}

say() { echo "rondo: $*" >&2; }

# key WORDS... is the hash of the words, of standard input and of this file.
key() { { echo "$@" && cat - "$script"; } | sha256sum | cut -c 1-40; }

# compile NAME ARCHITECTURE FOLDER. The source is named relative to its folder, and nvcc's own
# comments are left out, so that the text depends on the sources and the compiler alone.
compile() {
	local kept output=$3/$1.sm_$2.ptx
	kept=$cache/$(cat "$sources"/*.cuh compute/cells_gen.h "$sources/$1.cu" |
		key "$1" "$2" "$release").ptx
	if [ ! -s "$kept" ]; then
		(cd "$sources" && $NVCC -ptx -arch=compute_"$2" $flags -o "$output.raw" "$1.cu")
		{
			echo "// $1.cu for compute_$2, by nvcc $release. Made by scripts/kernels.sh."
			sed -e '/^\/\//d' -e '1,/^\.version/{/^$/d}' "$output.raw"
		} >"$output.new"
		rm "$output.raw"
		mv "$output.new" "$kept"
	fi
	cp "$kept" "$output"
}

# text FILE is PTX without the two lines that name its architecture.
text() { sed -e 1d -e '/^\.target /d' "$1"; }

# prune FOLDER removes each file that equals the same module's file for the architecture below.
prune() {
	local source file below architecture
	for source in "$sources"/*.cu; do
		below=""
		for architecture in $architectures; do
			file=$1/$(basename "$source" .cu).sm_$architecture.ptx
			if [ -n "$below" ] && cmp -s <(text "$below") <(text "$file"); then
				rm "$file"
			else
				below=$file
			fi
		done
	done
}

# serving NAME ARCHITECTURE FOLDER prints the module's file for the highest architecture that is not
# above this one: ptx.go chooses the same.
serving() {
	local architecture best
	for architecture in $architectures; do
		if [ "$architecture" -le "$2" ] && [ -f "$3/$1.sm_$architecture.ptx" ]; then
			best=$3/$1.sm_$architecture.ptx
		fi
	done
	echo "$best"
}

# look NAME ARCHITECTURE FOLDER prints what is wrong with the module's kernels on an architecture.
look() {
	local kept work file
	file=$(serving "$@")
	kept=$cache/$(key look "$1" "$2" "$release" <"$file").report
	if [ ! -f "$kept" ]; then
		work=$(mktemp -d)
		"$PTXAS" -v -arch "sm_$2" "$file" -o "$work/cubin" 2>"$work/ptxas" ||
			{ cat "$work/ptxas" >&2; rm -rf "$work"; return 1; }
		usage "$file" <"$work/ptxas" >"$work/report"
		# ptxas has said it of all; of those that everything waits for the machine code is read.
		case "$1" in
		persistent*)
			PATH=$(dirname "$NVDISASM"):$PATH "$CUOBJDUMP" -sass "$work/cubin" >"$work/sass"
			local_memory <"$work/sass" >>"$work/report"
			;;
		esac
		mv "$work/report" "$kept"
		rm -rf "$work"
	fi
	local kernel complaint
	while read -r kernel complaint; do
		allowed "$kernel" "$2" || echo "$1.cu, sm_$2: kernel $kernel $complaint"
	done <"$kept"
}

# usage PTX reads what ptxas -v says of this file. A kernel without __launch_bounds__ may be started
# with any block, up to 1024 threads, so that it may use 65536/1024 registers.
usage() {
	awk -v ptx="$1" '
		BEGIN {
			while ((getline line < ptx) > 0) {
				if (match(line, /\.entry [A-Za-z0-9_]+/)) {
					kernel = substr(line, RSTART + 7, RLENGTH - 7)
				} else if (match(line, /^\.maxntid [0-9]+/)) {
					threads[kernel] = substr(line, RSTART + 9, RLENGTH - 9)
				}
			}
		}
		/Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
		/bytes stack frame/ {
			if ($1 + $5 + $9 > 0) { sub(/^ */, ""); print kernel, "has", $0 }
		}
		/Used [0-9]+ registers/ {
			match($0, /Used [0-9]+/); used = substr($0, RSTART + 5, RLENGTH - 5)
			block = kernel in threads ? threads[kernel] : 1024
			if (int((used + 7) / 8) * 8 * block > 65536)
				print kernel, "uses", used, "registers: a block of", block, "cannot start", \
					(kernel in threads ? "" : "(it has no KERNEL_BOUNDS)")
		}'
}

# local_memory reads machine code and names the kernels with loads or stores of local memory.
local_memory() {
	awk '
		/Function :/ { kernel = $3 }
		/[ \t](LDL|STL)[. ]/ && !(kernel in told) {
			sub(/;.*/, ""); sub(/^.*\*\/ */, "")
			told[kernel] = 1; print kernel, "uses local memory:", $0
		}'
}

script=scripts/kernels.sh
case "${1:-}" in
compile)
	shift
	compile "$@"
	exit
	;;
look)
	shift
	look "$@"
	exit
	;;
"" | check) ;;
debug) [ $# = 2 ] || { say "usage: kernels.sh debug FOLDER"; exit 2; } ;;
*)
	say "usage: kernels.sh [check | debug FOLDER]"
	exit 2
	;;
esac

toolkit=$(scripts/cuda.sh exact env)
eval "$toolkit"
release=$("$NVCC" --version | sed -n 's/.*, V\([0-9.]*\)$/\1/p')
export release
mkdir -p "$cache"
find "$cache" -type f -mtime +30 -delete

# each COMMAND FOLDER does it for every source and architecture, on all cores.
each() {
	for source in "$sources"/*.cu; do
		name=$(basename "$source" .cu)
		for architecture in $architectures; do
			echo "$1 $name $architecture $2"
		done
	done | xargs -P "$(nproc)" -L 1 "$script"
}

if [ "${1:-}" = debug ]; then
	folder=$(mkdir -p "$2" && cd "$2" && pwd)
	for name in persistent_forward persistent_backward; do
		(cd "$sources" && "$NVCC" -ptx -arch=compute_80 $flags -DRONDO_BOUNDED_SPINS \
			-o "$folder/$name.ptx" "$name.cu")
	done
	exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
each compile "$work"
prune "$work"
if [ "${1:-}" = "" ]; then
	mkdir -p "$sources/ptx"
	rm -f "$sources"/ptx/*.ptx
	cp "$work"/*.ptx "$sources/ptx"
	exit
fi

if ! diff -rq "$work" "$sources/ptx" >"$work.diff" 2>&1; then
	sed "s|$work|what the sources give|g" "$work.diff" >&2
	rm -f "$work.diff"
	say "the PTX in $sources/ptx is not what its sources give: run make kernels"
	exit 1
fi
rm -f "$work.diff"
problems=$(each look "$work")
if [ -n "$problems" ]; then
	echo "$problems" >&2
	say "these kernels must do with fewer registers, or be allowed, with a reason, in $script"
	exit 1
fi
say "kernels: $(grep -h '^\.visible \.entry' "$work"/*.ptx | sort -u | wc -l), no spills, on" \
	"$(echo "$architectures" | sed 's/[0-9]*/sm_&/g')"
