#!/bin/sh
# Prints the CGO_ENABLED to build with: 1 where a C compiler works, else 0, the pure-Go build, with
# a notice on standard error. CGO_ENABLED=0 in the environment decides too.
# "native.sh probe" prints nothing and only exits with 0 or 1.
set -eu

compiles() {
	out=$(mktemp)
	status=0
	echo '#include <math.h>
	#include <pthread.h>
	int main(int n, char **of) { return sqrt(n) > 0 && pthread_self() ? 0 : 1; }' |
		${CC:-gcc} -pthread -x c - -o "$out" -lm >/dev/null 2>&1 || status=1
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
	echo "rondo: no C compiler that works: building in pure Go, which trains more slowly" >&2
	echo 0
fi
