#!/bin/sh
# Installs the Debian or Ubuntu packages that a build needs and this machine lacks, and says so
# before it does.
#
#   deps.sh [check|test|arm64]
#
# Without an argument: a C compiler. Where it cannot be installed the build still works, in pure Go,
# so that is a notice and no error. With "check": also protoc, which `make check` cannot do without.
# With "test": what makes and cuts a network of namespaces, without which some tests are skipped,
# and a C++ compiler, for nvcc and the emulated GPU of compute/cuda's tests. With "arm64": a cross
# compiler and qemu's emulation of an arm64 processor.
set -eu
cd "$(dirname "$0")/.."

say() { echo "rondo: $*" >&2; }

if ! command -v go >/dev/null; then
	say "Go is missing; install the version that go.mod names, or a newer one"
	exit 1
fi

needed=""
if [ "${CGO_ENABLED:-1}" != 0 ] && ! scripts/native.sh probe; then
	say "this machine lacks a C compiler, for the fast CPU kernels"
	needed="gcc libc6-dev"
fi
# Debian has protoc's own .proto files, which ours import, in a package that protoc only recommends.
protoc_works() {
	command -v protoc >/dev/null &&
		protoc -I proto --descriptor_set_out=/dev/null proto/rondo/v1/*.proto 2>/dev/null
}
if [ "${1:-}" = check ] && ! protoc_works; then
	say "this machine lacks protoc, or the files it comes with, to check the generated code"
	needed="$needed protobuf-compiler libprotobuf-dev"
fi
if [ "${1:-}" = test ] && ! { command -v ip && command -v tc && command -v nft; } >/dev/null; then
	say "this machine lacks ip, tc or nft, for tests that cut a network"
	needed="$needed iproute2 nftables"
fi
if [ "${1:-}" = test ] && [ "${CGO_ENABLED:-1}" != 0 ] &&
	! command -v "${CXX:-g++}" >/dev/null; then
	say "this machine lacks a C++ compiler, for tests of the build for GPUs"
	needed="$needed g++"
fi
if [ "${1:-}" = arm64 ] && ! command -v aarch64-linux-gnu-gcc >/dev/null; then
	say "this machine lacks a compiler for arm64, for tests of the NEON kernels"
	needed="$needed gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
fi
if [ "${1:-}" = arm64 ] && ! command -v qemu-aarch64 >/dev/null; then
	say "this machine lacks qemu-aarch64, for tests of the NEON kernels"
	needed="$needed qemu-user"
fi
[ -n "$needed" ] || exit 0

if ! command -v apt-get >/dev/null; then
	obstacle="there is no apt-get"
elif [ "$(id -u)" = 0 ]; then
	obstacle="" sudo=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
	obstacle="" sudo="sudo -n"
else
	obstacle="you are not root and sudo would ask for a password"
fi

if [ -z "$obstacle" ]; then
	say "installing with apt-get:" $needed
	export DEBIAN_FRONTEND=noninteractive
	# An old package list may still do, so a failed update is not the end.
	$sudo apt-get update -qq || say "apt-get update failed; trying with the package list as it is"
	if $sudo apt-get install -y -qq --no-install-recommends $needed >/dev/null; then
		exit 0
	fi
	obstacle="apt-get failed"
fi

say "cannot install: $obstacle. To do it by hand: apt-get install" $needed
case "$needed" in
*protobuf-compiler*) exit 1 ;;
esac
