#!/usr/bin/env bash
# Compiles the CUDA kernels of compute/cuda/kernels to PTX, which is committed and embedded. A file
# is kept only if it differs from the same module's file for the architecture below.
#
#   kernels.sh           into compute/cuda/kernels/ptx
#   kernels.sh debug FOLDER
#                        a debug build of the persistent kernels for 8.0 and newer, into the folder:
#                        it bounds how often a block looks for what another writes (see
#                        compute/cuda/watch.go for RONDO_CUDA_KERNELS and RONDO_CUDA_SPINS)
#   kernels.sh check     elsewhere, and fails if what is committed differs; then assembles it with
#                        the toolkit's ptxas, and with those of PyPI's CUDA 12.9 and 13.5 for newer
#                        GPUs, as drivers have them. It prints what each persistent kernel takes
#                        and how long its gates are, and fails if a kernel spills registers, keeps
#                        arrays in local memory, or takes so many registers that its block cannot
#                        start
#
# What has been compiled or looked at once is kept under ${XDG_CACHE_HOME:-~/.cache}/rondo/ptx for
# 30 days, by the hash of all that it was made from. Exit status: that of scripts/cuda.sh (3: there
# can be no compiler here), or 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sources=compute/cuda/kernels
architectures="70 80 90" # ascending; the first is ptx.go's lowest
newer="80 90 100 120"    # those for which newer assemblers are tried
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
	kept=$cache/$(cat "$sources"/*.cuh compute/cpu/kernels/cells_gen.h "$sources/$1.cu" |
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

# look NAME ARCHITECTURE FOLDER PTXAS NVDISASM prints what an assembler makes of a module
# for a GPU: lines of "use" and "code" for each persistent kernel, and of "bad" for complaints.
look() {
	local kept work file release
	file=$(serving "$@")
	release=$("$4" --version | sed -n 's/.*, V\([0-9.]*\)$/\1/p')
	kept=$cache/$(key look "$1" "$2" "$release" <"$file").report
	if [ ! -f "$kept" ]; then
		work=$(mktemp -d)
		"$4" -v -arch "sm_$2" "$file" -o "$work/cubin" 2>"$work/ptxas" ||
			{ cat "$work/ptxas" >&2; rm -rf "$work"; return 1; }
		usage "$file" <"$work/ptxas" >"$work/report"
		# ptxas has said it of all; of those that everything waits for the machine code is read.
		case "$1" in
		persistent*)
			# It warns that it cannot follow the flow of another assembler's code.
			"$5" -c "$work/cubin" >"$work/sass" 2>"$work/nvdisasm" ||
				{ cat "$work/nvdisasm" >&2; rm -rf "$work"; return 1; }
			instructions <"$work/sass" >>"$work/report"
			;;
		esac
		mv "$work/report" "$kept"
		rm -rf "$work"
	fi
	local kind kernel rest
	while read -r kind kernel rest; do
		case "$kind" in
		bad)
			allowed "$kernel" "$2" ||
				echo "bad $1.cu, sm_$2, ptxas $release: kernel $kernel $rest"
			;;
		use | code) case "$1" in persistent*) echo "$kind $release sm_$2 $kernel $rest" ;; esac ;;
		esac
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
			local = $1 + $5 + $9
			if (local > 0) { sub(/^ */, ""); print "bad", kernel, "has", $0 }
		}
		/Used [0-9]+ registers/ {
			match($0, /Used [0-9]+/); used = substr($0, RSTART + 5, RLENGTH - 5)
			print "use", kernel, used, local
			block = kernel in threads ? threads[kernel] : 1024
			if (int((used + 7) / 8) * 8 * block > 65536)
				print "bad", kernel, "uses", used, "registers: a block of", block, \
					"cannot start", (kernel in threads ? "" : "(it has no KERNEL_BOUNDS)")
		}'
}

# instructions reads machine code: how many instructions and branches a kernel has, which loads or
# stores local memory, and the same of its gates: of the longest way from the barrier behind a
# step's product to the next read of the exchange, which the other blocks wait for.
instructions() {
	awk '
		/^\.text\./ { sub(/^\.text\./, ""); sub(/:.*/, ""); kernel = $0; at = 0; next }
		/^\.L_x_/ { # the longest way here: what comes before, or a branch
			sub(/:.*/, "")
			if ($0 in far && far[$0] > way) { way = far[$0]; forks = turns[$0] }
			next
		}
		!/^[ \t]*\/\*[0-9a-f]+\*\// || /[ \t]NOP[ ;]/ { next }
		{ all[kernel]++ }
		/[ \t](BRA|BRX|JMP)[. ]/ { branches[kernel]++ }
		/[ \t](LDL|STL)[. ]/ && !(kernel in told) {
			line = $0; sub(/;.*/, "", line); sub(/^.*\*\/ */, "", line)
			told[kernel] = 1; print "bad", kernel, "uses local memory:", line
		}
		/[ \t]BAR\.SYNC/ { at = 1; way = forks = longest[kernel] = 0; split("", far); next }
		/[ \t]LDG?\.E\.128\.STRONG/ { at = 0 }
		!at { next }
		{ way++ }
		/[ \t](BRA|BRX|JMP)[. ]/ {
			forks++
			if (match($0, /\.L_x_[0-9]+/)) {
				label = substr($0, RSTART, RLENGTH)
				if (!(label in far) || way > far[label]) { far[label] = way; turns[label] = forks }
			}
		}
		way > longest[kernel] { longest[kernel] = way; most[kernel] = forks }
		/\*\/ *(BRA|JMP) `/ { way = -1e9 } # nothing falls through
		END {
			for (kernel in all)
				print "code", kernel, all[kernel], branches[kernel] + 0, longest[kernel],
					most[kernel]
		}'
}

# table joins the lines of "use" and "code" of each kernel.
table() {
	awk '
		$1 == "use" { use[$2 " " $3 " " $4] = $5 " " $6 }
		$1 == "code" { code[$2 " " $3 " " $4] = $5 " " $6 " " $7 " " $8 }
		END { for (key in use) print key, use[key], code[key] }' | sort -V |
		awk 'BEGIN {
			format = "%-8s  %-6s  %-26s  %9s  %6s  %12s  %8s  %5s  %8s\n"
			printf format, "ptxas", "GPU", "kernel", "registers", "spills", "instructions", \
				"branches", "gates", "branches"
		}
		{ printf format, $1, $2, $3, $4, $5, $6, $7, $8, $9 }'
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

# each COMMAND ARCHITECTURES ARGUMENT... does it for every source and architecture, on all cores.
each() {
	local command=$1 all=$2
	shift 2
	for source in "$sources"/*.cu; do
		name=$(basename "$source" .cu)
		for architecture in $all; do
			echo "$command $name $architecture $*"
		done
	done | xargs -P "$(nproc)" -L 1 "$script"
}

# assemblers prints, for each of PyPI, its ptxas and a disassembler that knows the GPUs, where they
# are to be had: as drivers of CUDA 12.9 and 13.5 have them.
assemblers() {
	local disassembler folder
	disassembler=$(scripts/wheel.sh nvidia-cuda-nvdisasm==13.5.37 \
		d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca) || return
	disassembler=$disassembler/nvidia/cu13/bin/nvdisasm
	folder=$(scripts/wheel.sh nvidia-cuda-nvcc-cu12==12.9.86 \
		5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0) || return
	echo "$folder/nvidia/cuda_nvcc/bin/ptxas $disassembler"
	folder=$(scripts/wheel.sh nvidia-cuda-nvcc==13.5.37 \
		f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7) || return
	echo "$folder/nvidia/cu13/bin/ptxas $disassembler"
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
each compile "$architectures" "$work"
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
report=$work.report
trap 'rm -rf "$work" "$report"' EXIT
each look "$architectures" "$work" "$PTXAS" "$NVDISASM" >"$report"
status=0
others=$(assemblers) || status=$?
case $status in
0) while read -r tools; do each look "$newer" "$work" $tools >>"$report"; done <<<"$others" ;;
3) say "NOT CHECKED: what newer assemblers make of the kernels" ;;
*) exit $status ;;
esac
table <"$report"
problems=$(sed -n 's/^bad //p' "$report")
if [ -n "$problems" ]; then
	echo "$problems" >&2
	say "these kernels must do with fewer registers, or be allowed, with a reason, in $script"
	exit 1
fi
say "kernels: $(grep -h '^\.visible \.entry' "$work"/*.ptx | sort -u | wc -l), no spills, on" \
	"$(echo "$architectures $newer" | tr ' ' '\n' | sort -nu | sed 's/.*/sm_&/' | tr '\n' ' ')"
