#!/bin/sh
# Runs the tests in three parts: every test, and beside it those of the pure-Go build and of the
# build for GPUs: many tests wait for processes, and leave a processor idle. A part that fails does
# not keep the others from running; the last lines name what failed.
#
#   test.sh         each test once, with go test's -short: fewer seeds and smaller shapes
#   test.sh race    each test under the race detector, with -short; then, without either, the
#                   packages whose tests have more seeds or shapes without -short; fuzzing; the
#                   NEON kernels on an emulated arm64; the other tests of the build for GPUs, and
#                   the kernels' PTX
set -u
cd "$(dirname "$0")/.." || exit

say() { echo "rondo: $*" >&2; }

work=$(mktemp -d)
beside="" # the process of the parts that run beside the first
trap '[ -z "$beside" ] || kill "$beside" 2>/dev/null; rm -rf "$work"' EXIT

# part NAME COMMAND... runs a command. If it fails, its name and what go test says of the packages
# that failed are kept for the end.
part() {
	name=$1
	shift
	own=$(mktemp -d "$work/part.XXXXXX")
	say "testing $name"
	started=$(date +%s)
	{
		"$@" && status=0 || status=$?
		echo "$status" >"$own/status" # a command that is killed leaves none
	} 2>&1 | tee "$own/log"
	if [ "$(cat "$own/status" 2>/dev/null)" = 0 ]; then
		say "$name: ok, $(($(date +%s) - started)) s"
	else
		say "$name: FAILED after $(($(date +%s) - started)) s"
		echo "rondo: FAILED: $name" >>"$work/failed"
		grep '^FAIL.*[./]' "$own/log" >>"$work/failed"
	fi
}

# tests runs go test without go vet, which is a target of its own. Many tests wait for processes, so
# that more of them run than there are cores.
tests() {
	CGO_ENABLED=$cgo go test -vet=off -timeout 30m -parallel 4 "$@"
}

# pure tests the pure-Go build: the packages that it changes and, in test.sh race, two that import
# them.
pure() {
	CGO_ENABLED=0 go test -short -vet=off -timeout 20m \
		./compute ./compute/cpu ./compute/devicetest $importers
}

# fuzzing fuzzes the decoders of what other processes send: eight targets, two minutes on two cores.
fuzzing() {
	CGO_ENABLED=$cgo scripts/fuzz.sh 30s allreduce/compress allreduce/shm cluster/etcdstore \
		cluster/meet cluster/rpc sum/sharded
}

# longer matches integration's tests that have more rows, steps or time without -short.
longer='^Test(Matrix|CertificatesRotate|Parity|Canonical|RingUnderStrangers|ManyWorkers)$'

cgo=$(scripts/native.sh) || exit
race="" detector="" importers="" cuda=short
case "${1:-}" in
"") ;;
race)
	race=1 detector=-race importers="./model/... ./train/..." cuda="build others"
	if [ "$cgo" = 0 ]; then
		say "testing without the race detector, which needs a C compiler"
		detector=""
	fi
	;;
*)
	say "usage: test.sh [race]; not $*"
	exit 2
	;;
esac

say "beside every package: the pure-Go build, then the build for GPUs; what they print comes last"
{
	part "the pure-Go build" pure
	part "the build for GPUs" scripts/test-cuda.sh $cuda
	[ -z "$race" ] || part "the NEON kernels" scripts/test-arm64.sh
} >"$work/beside" 2>&1 &
beside=$!
if [ -z "$race" ]; then
	part "every package" tests -short ./integration ./... # what takes the longest comes first
else
	# Not compute/cpu, whose kernels are C, which the detector does not watch, and whose reference
	# loops take minutes under it; nor integration, whose processes are built without it.
	raced=$(go list ./... | grep -vx -e rondo/compute/cpu -e rondo/integration)
	folders=$(grep -rl --include='*_test.go' 'testing\.Short()' . | xargs -n 1 dirname | sort -u)
	part "packages under the race detector" tests $detector -short $raced
	part "packages with longer tests" tests $(echo "$folders" | grep -v -e integration -e cuda)
	part "integration's longer tests" tests -run "$longer" ./integration
fi
wait "$beside"
beside=""
cat "$work/beside"
if [ -n "$race" ]; then
	part "fuzzing" fuzzing
	part "the kernels and headers for GPUs" scripts/test-cuda.sh headers kernels
fi

if [ -f "$work/failed" ]; then
	cat "$work/failed" >&2
	exit 1
fi
say "all tests passed"
