#!/usr/bin/env bash
# Finds a CUDA toolkit to build with, or fetches what is needed of version 11.8: no root, no GPU, no
# driver. Kernels are committed as PTX, so that a build of the Go code needs only the headers; nvcc
# and ptxas are for `make kernels` and `make kernels-check`.
#
#   cuda.sh [exact] [env]
#
# Without an argument: says where the toolkit is, on standard error. With "env": prints shell
# assignments for a build, to be eval'ed. With "exact": only the version that the committed PTX was
# compiled with will do; else any 11.x or 12.x that is installed (CUDA_HOME, /usr/local/cuda, or
# Debian's nvidia-cuda-toolkit).
#
# What is fetched are Debian's packages, pinned by SHA-256, from RONDO_DEBIAN_MIRROR or
# deb.debian.org: 88 MB, of which 140 MB are kept in ${XDG_CACHE_HOME:-~/.cache}/rondo/cuda-11.8.
# Of nvidia-cuda-dev, 774 MB, only the first 4 MB are fetched: they hold all headers.
#
# Exit status: 0; 3 where no toolkit is to be had here, with the reason in one line; 1 or 2 for any
# other failure.
set -euo pipefail

version=11.8.89
release=$version~11.8.0-5~deb12u1_amd64.deb
pool=${RONDO_DEBIAN_MIRROR:-http://deb.debian.org/debian}/pool/non-free/n/nvidia-cuda-toolkit
toolkit_sha256=d1156026e704fe0368b6295db06224ed00a727966fb13454f34e3f3102db0457
headers_bytes=4000000
headers_sha256=c646a749aecb843d716faf4b41a040e7797929bfbf2dc4e261a966f7d849f146

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rondo
folder=$cache/cuda-11.8
script=$(realpath "${BASH_SOURCE[0]}")
root=$(dirname "$(dirname "$script")")

say() { echo "rondo: $*" >&2; }

# unavailable ends the script where there can be no toolkit.
unavailable() {
	say "no CUDA toolkit: $*"
	exit 3
}

# release_of prints the version of an nvcc, as 11.8.89.
release_of() {
	"$1" --version 2>/dev/null | sed -n 's/.*, V\([0-9.]*\)$/\1/p'
}

# installed prints "nvcc include-folder" of a toolkit on this machine that will do.
installed() {
	local home nvcc found
	for home in "${CUDA_HOME:-}" /usr/local/cuda ""; do
		if [ -n "$home" ]; then
			nvcc=$home/bin/nvcc include=$home/include
		else
			nvcc=$(command -v nvcc || true) include=/usr/include
		fi
		[ -x "$nvcc" ] && [ -f "$include/cuda.h" ] || continue
		found=$(release_of "$nvcc")
		case "$exact:$found" in
		1:"$version" | 0:11.* | 0:12.*)
			echo "$nvcc $include"
			return
			;;
		0:*) say "$nvcc is of version ${found:-unknown}, and 11 or 12 is needed: passed over" ;;
		esac
	done
}

# download URL FILE BYTES fetches at most so many bytes. A server that does not know ranges sends
# all, of which head takes its part and closes, so that an error says nothing: the content does.
download() {
	local url=$1 file=$2 range=0-$(($3 - 1))
	if command -v curl >/dev/null; then
		curl -fsSL --retry 3 --connect-timeout 20 --max-time 900 -r "$range" "$url" || true
	else
		wget -nv -O - --tries=3 --timeout=60 --header="Range: bytes=$range" "$url" || true
	fi | head -c "$3" >"$file"
	[ -s "$file" ]
}

# fetch NAME BYTES SHA256 puts the beginning of a package into $work.
fetch() {
	download "$pool/$1_$release" "$work/$1.deb" "$2" ||
		unavailable "cannot fetch $pool/$1_$release; is there a network?"
	echo "$3  $work/$1.deb" | sha256sum --check --status ||
		unavailable "$pool/$1_$release does not have the SHA-256 that $0 names"
}

# unpack NAME PATTERN... takes files out of a package, which may lack its end.
unpack() {
	local name=$1
	shift
	{
		if command -v dpkg-deb >/dev/null; then
			dpkg-deb --fsys-tarfile "$work/$name.deb" 2>/dev/null
		else
			ar p "$work/$name.deb" data.tar.xz 2>/dev/null | xz -dc 2>/dev/null
		fi || true
	} | tar -x -C "$work/tree" --wildcards "$@" 2>/dev/null || true
}

# relocate writes what tells nvcc where its parts are: relative to itself.
relocate() {
	cat >"$work/tree/usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile" <<-'END'
		TOP = $(_HERE_)/../../..
		CICC_PATH = $(_HERE_)
		NVVMIR_LIBRARY_DIR = $(_HERE_)/../libdevice
		PATH += $(_HERE_):$(TOP)/bin:
		INCLUDES += "-I$(TOP)/include" "-I$(_HERE_)" $(_SPACE_)
		LIBRARIES =+ $(_SPACE_)
		CUDAFE_FLAGS +=
		PTXAS_FLAGS +=
	END
}

# make_folder fetches the toolkit into $folder, which is there as a whole or not at all.
make_folder() {
	[ "$(uname -sm)" = "Linux x86_64" ] ||
		unavailable "Debian's packages are fetched for Linux on x86-64, and this is $(uname -sm):" \
			"install CUDA 11 or 12 and set CUDA_HOME"
	local tool missing=""
	command -v curl >/dev/null || command -v wget >/dev/null || missing="curl"
	command -v dpkg-deb >/dev/null || for tool in ar xz; do
		command -v $tool >/dev/null || missing="$missing $tool"
	done
	[ -z "$missing" ] || unavailable "to fetch it, install:" $missing
	say "fetching what compiling for GPUs takes of CUDA 11.8: 88 MB, into $folder"
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/cuda.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	fetch nvidia-cuda-dev $headers_bytes $headers_sha256
	fetch nvidia-cuda-toolkit 100000000 $toolkit_sha256
	mkdir "$work/tree"
	unpack nvidia-cuda-dev './usr/include/*'
	unpack nvidia-cuda-toolkit './usr/bin/cudafe++' './usr/bin/ptxas' './usr/bin/fatbinary' \
		'./usr/bin/nvdisasm' './usr/lib/nvidia-cuda-toolkit/bin/*' \
		'./usr/lib/nvidia-cuda-toolkit/libdevice/*'
	# Debian's wrappers choose a host compiler that need not be here.
	rm -rf "$work"/tree/usr/lib/nvidia-cuda-toolkit/bin/{gcc,g++,nvcc.profile}
	relocate
	[ -s "$work/tree/usr/include/cuda.h" ] && [ -s "$work/tree/usr/include/vector_types.h" ] ||
		unavailable "the headers could not be unpacked"
	[ "$(release_of "$work/tree/$fetched_nvcc")" = $version ] ||
		unavailable "the nvcc of Debian's package does not run here (it needs glibc)"
	identity >"$work/tree/identity"
	# A folder of an older recipe goes; one that another process has just made is as good as ours.
	[ ! -e "$folder" ] || whole || rm -rf "$folder"
	mv -T "$work/tree" "$folder" 2>/dev/null || whole ||
		unavailable "cannot write $folder"
}

# modules prints the flag of a build with the tag cuda. It names a copy of go.mod with changed
# copies of two modules.
#
# It runs in a command substitution, where bash drops -e: each command says what its failure does.
modules() {
	local gorgonia cu mod recipe
	command -v go >/dev/null || return 0
	cd "$root" || exit
	export GOFLAGS=$flags
	# A copy is named by how it was made and by CUDA's headers: Go's cache does not see CPATH, and
	# would keep objects that were made with other headers.
	recipe=$(cat "$script" "$include/cuda.h" | sha256sum | cut -c 1-16) || exit
	mkdir -p "$cache/modules" || exit
	find "$cache/modules" -type f -mtime +30 -delete || exit
	find "$cache" -maxdepth 1 -name '*@v*-*' -mtime +30 -exec rm -rf {} + || exit
	gorgonia=$(copied gorgonia) && cu=$(copied cu) || exit
	mod=$cache/modules/$(cat go.mod go.sum "$script" | sha256sum | cut -c 1-24)-$recipe || exit
	if [ ! -f "$mod.mod" ] || [ ! -f "$mod.sum" ]; then
		work=$(mktemp -d "$cache/modules.XXXXXX") || exit
		trap 'rm -rf "$work"' EXIT
		cp go.mod go.sum "$work/" || exit
		go mod edit -replace "gorgonia.org/gorgonia=$gorgonia" -replace "gorgonia.org/cu=$cu" \
			"$work/go.mod" || exit
		# Renamed, for another build may be reading them.
		mv "$work/go.sum" "$mod.sum" && mv "$work/go.mod" "$mod.mod" || exit
	fi
	echo "-modfile=$mod.mod"
}

# copied NAME prints the folder of a changed copy of the module gorgonia.org/NAME, and makes it if
# it is not there.
copied() {
	local module=gorgonia.org/$1 number original copy
	go mod download "$module" || no_modules "$module could not be downloaded"
	number=$(go list -m -f '{{.Version}}' "$module") || no_modules "go list failed"
	original=$(go list -m -f '{{.Dir}}' "$module") || no_modules "go list failed"
	# An empty name would be this folder, and Rondo's own files be taken for the module's.
	[ -n "$number" ] && [ -n "$original" ] && grep -qx "module $module" "$original/go.mod" ||
		no_modules "${original:-no folder} does not hold $module"
	copy=$cache/$1@$number-$recipe
	if [ ! -d "$copy" ]; then
		work=$(mktemp -d "$cache/modules.XXXXXX") || exit
		trap 'rm -rf "$work"' EXIT
		mkdir "$work/tree" && cp -R "$original"/* "$work/tree" && chmod -R u+w "$work/tree" &&
			(cd "$work/tree" && "change_$1") || no_modules "$module could not be copied"
		# One that another process has just made is as good as ours.
		mv -T "$work/tree" "$copy" 2>/dev/null || [ -d "$copy" ] || exit
	fi
	touch "$copy" || exit
	echo "$copy"
}

# change_gorgonia removes the files with the tag cuda from the folder where it runs: a device of
# Gorgonia's own, which needs cuDNN's headers and would open every GPU. Go cannot give a tag to one
# module only. What no build reads goes too: it is 85 MB.
change_gorgonia() {
	rm -rf ./*_test.go examples media &&
		grep -lE '^// \+build cuda$' ./*.go | xargs rm &&
		sed -i -E '/^\/\/ \+build !cuda$/d' ./*.go
}

# change_cu removes cu's own flags: the driver's library, which is opened when the program runs,
# where there is one, and folders of headers, which would be before CPATH. The constant says that it
# is this copy, and made anew with other headers.
change_cu() {
	sed -i '/#cgo.*FLAGS/d' cgoflags.go &&
		echo "const MadeByScriptsCudaSh = \"$recipe\"" >>cgoflags.go
}

# no_modules ends modules with the reason.
no_modules() {
	say "no modules to build with: $*"
	exit 1
}

# identity says what a folder was made from. The number counts what make_folder does with it.
identity() { echo "$toolkit_sha256 $headers_sha256 1"; }

# whole says whether $folder was made from the same.
whole() { [ -f "$folder/identity" ] && [ "$(cat "$folder/identity")" = "$(identity)" ]; }

fetched_nvcc=usr/lib/nvidia-cuda-toolkit/bin/nvcc
exact=0 env=0
for argument; do
	case "$argument" in
	exact) exact=1 ;;
	env) env=1 ;;
	*)
		say "usage: cuda.sh [exact] [env]; not $argument"
		exit 2
		;;
	esac
done

found=$(installed)
if [ -n "$found" ]; then
	nvcc=${found% *} include=${found#* } bin=$(dirname "${found% *}")
else
	whole || make_folder
	nvcc=$folder/$fetched_nvcc include=$folder/usr/include bin=$folder/usr/bin
fi

if [ $env = 0 ]; then
	say "CUDA $(release_of "$nvcc"): $nvcc, headers in $include"
	exit 0
fi
# CPATH and not CGO_CFLAGS, with which Go would compile all C code anew.
flags=$(echo "${GOFLAGS:-}" | sed 's/ *-modfile=[^ ]*//g') # this file may have been asked before
flag=$(modules)
case ":${CPATH:-}:" in
":$include:"*) path=$CPATH ;;
*) path=$include${CPATH:+:$CPATH} ;;
esac
printf 'export %s=%q\n' GOFLAGS "$flags $flag" CPATH "$path" \
	NVCC "$nvcc" PTXAS "$bin/ptxas" NVDISASM "$bin/nvdisasm"
