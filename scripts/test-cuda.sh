#!/usr/bin/env bash
# Builds and tests with the tag cuda, on a machine that need have no GPU.
#
#   test-cuda.sh [required] PART...
#
#   build    the commands into bin/cuda, and that they start without a driver
#   vet      go vet
#   lint     golangci-lint, whose program LINT names
#   headers  that the worker links with the headers of CUDA 12, too
#   kernels  scripts/kernels.sh check
#   test     the tests, on an emulated driver where there is no GPU
#   short    those of compute/cuda, with go test's -short
#   others   those of the other packages that the tag changes
#
# A part that fails does not keep the others from running.
#
# Where there can be no toolkit (see scripts/cuda.sh) it says so, and does nothing: a machine that
# cannot build for GPUs can still test all else. With "required" that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tags=cuda${TAGS:+,$TAGS} # TAGS is the Makefile's

say() { echo "rondo: $*" >&2; }

required=0
if [ "${1:-}" = required ]; then
	required=1
	shift
fi

skip() {
	if [ $required = 1 ]; then
		say "cannot build for GPUs: $*"
		exit 1
	fi
	say "NOT TESTED: the build for GPUs, because $*"
	exit 0
}

# folders prints those of the packages that the tag changes.
folders() {
	grep -rlE --include='*.go' '^//go:build .*\bcuda\b' . | xargs -n 1 dirname | sort -u
}

build() {
	say "building with the tag cuda, into bin/cuda"
	go build -buildvcs=false -tags "$tags" -ldflags "-s -w" -o bin/cuda/ \
		./cmd/rondo ./cmd/worker ./cmd/coordinator
	local command
	for command in rondo worker; do
		# What is opened when it runs must not be asked for when it starts.
		if readelf -d "bin/cuda/$command" | grep -E 'NEEDED.*(libcu|nvidia)' >&2; then
			say "bin/cuda/$command does not start where these are missing"
			exit 1
		fi
		"bin/cuda/$command" --help >/dev/null
	done
}

# headers links with the headers of PyPI's CUDA 12, which rename functions of the driver.
headers() {
	local status=0 folder
	folder=$(scripts/wheel.sh nvidia-cuda-runtime-cu12==12.9.79 \
		25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3) || status=$?
	[ $status != 3 ] || skip "the headers of CUDA 12 are not to be had"
	[ $status = 0 ] || return $status
	say "linking with the headers of CUDA 12.9"
	# Not by CPATH, at which Go does not look: it would link what it has compiled with others.
	CGO_CFLAGS="-O2 -I$folder/nvidia/cuda_runtime/include" \
		go build -buildvcs=false -tags "$tags" -o /dev/null ./cmd/worker
}

vet() {
	say "go vet with the tag cuda"
	go vet -buildvcs=false -tags "$tags" $(folders)
}

# lint leaves out what stands on Gorgonia: golangci-lint does not take the -modfile that it needs.
lint() {
	say "golangci-lint with the tag cuda"
	GOFLAGS=-buildvcs=false "$LINT" run --allow-parallel-runners --build-tags "$tags,lint" \
		./compute/cuda/...
}

kernels() {
	say "the kernels' PTX, and what assembling it gives"
	local status=0
	scripts/kernels.sh check || status=$?
	[ $status != 3 ] || skip "nvcc is not to be had"
	return $status
}

# tests FOLDERS ARGUMENT... runs the tests in folders.
tests() {
	local folders=$1
	shift
	say "testing with the tag cuda"
	go test "$@" -buildvcs=false -tags "$tags" -timeout 30m $folders
}

# run runs a part in a shell of its own, which ends at the first command that fails, and notes it.
failed=""
run() {
	local status=0
	set +e
	(
		set -e
		"$@"
	)
	status=$?
	set -e
	[ $status = 0 ] || failed+=" $1"
}

[ "$(scripts/native.sh 2>/dev/null)" = 1 ] || skip "there is no C compiler, or CGO_ENABLED is 0"
export CGO_ENABLED=1
status=0
toolkit=$(scripts/cuda.sh env) || status=$?
[ $status != 3 ] || skip "there is no toolkit"
[ $status = 0 ] || exit $status
eval "$toolkit"

for part; do
	case "$part" in
	build | vet | lint | headers | kernels) run "$part" ;;
	test) run tests "$(folders)" ;;
	short) run tests "$(folders | grep compute/cuda)" -short ;;
	others) run tests "$(folders | grep -v compute/cuda)" ;;
	*)
		say "test-cuda.sh has no part $part"
		exit 2
		;;
	esac
done
if [ -n "$failed" ]; then
	say "FAILED with the tag cuda:$failed"
	exit 1
fi
