#!/bin/sh
# Prints the CGO_ENABLED to build with: 1 where a C compiler and OpenBLAS work, else 0, the pure-Go
# build, with a notice on standard error. CGO_ENABLED=0 in the environment decides too.
# "native.sh probe" prints nothing and only exits with 0 or 1.
set -eu

compiles() {
	out=$(mktemp)
	status=0
	echo '#include <cblas.h>
	int main(void) { float x = 1; return (int)cblas_sdot(1, &x, 1, &x, 1) - 1; }' |
		${CC:-gcc} -x c - -o "$out" -lopenblas >/dev/null 2>&1 || status=1
	rm -f "$out"
	return $status
}

if [ "${1:-}" = probe ]; then
	compiles
elif [ "${CGO_ENABLED:-1}" = 0 ]; then
	echo 0
elif compiles; then
	echo 1
else
	echo "rondo: no C compiler or no OpenBLAS: building in pure Go, which trains more slowly" >&2
	echo 0
fi
