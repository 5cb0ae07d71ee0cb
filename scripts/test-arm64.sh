#!/bin/sh
# Tests the NEON kernels of compute/cpu on an emulated arm64 processor: builds the tests with a
# cross compiler and runs them on qemu, some 50 times slower than on a real one.
#
#   test-arm64.sh [-run REGEXP]     default: tests of single kernels, which take two minutes
set -eu
cd "$(dirname "$0")/.."

say() { echo "rondo: $*" >&2; }

if [ "$(uname -m)" = aarch64 ]; then
	say "skipped: on this processor go test runs the NEON kernels"
	exit 0
fi
scripts/deps.sh arm64
if ! { command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64; } >/dev/null; then
	say "skipped: the NEON kernels' tests need aarch64-linux-gnu-gcc and qemu-aarch64"
	exit 0
fi

quick='Product|Outers|OperandLayouts|Functions|Output|Rounding|ElementwiseAgrees|GemmParts'
[ $# -gt 0 ] || set -- -run "^Test($quick)\$"
CGO_ENABLED=1 GOOS=linux GOARCH=arm64 CC=aarch64-linux-gnu-gcc \
	go test -short -vet=off -timeout 60m -exec "qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	./compute/cpu "$@"
