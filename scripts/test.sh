#!/bin/sh
# Runs the tests in three parts: every test, and beside it those of the pure-Go build and of the
# build for GPUs: many tests wait for processes, and leave a processor idle. A part that fails does
# not keep the others from running; the last lines name what failed.
#
#   test.sh         each test once, with go test's -short: fewer seeds and smaller shapes
#   test.sh race    under the race detector, with all seeds; without it all shapes and the longer
#                   tests of integration; then some fuzzing, the commands of the build for GPUs and
#                   the CUDA kernels' PTX
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

# hours runs simulations that would take ten times as long under the race detector.
hours() {
	(export RONDO_TEST_LONG=1 && tests -run '^TestHealth$' ./worker)
}

# memory runs the test that the race detector's own memory would upset.
memory() {
	tests -run TestMemoryAgainstWorkers ./job
}

# pure runs the tests of the packages that the pure-Go build changes, and without -short of those
# that stand on them.
pure() {
	[ -n "$short" ] || above="./model/... ./train/..."
	CGO_ENABLED=0 go test $short -vet=off -timeout 20m \
		./compute ./compute/cpu ./compute/devicetest $above
}

# fuzzing fuzzes what reads the words of other processes: seven targets, two minutes on two cores.
fuzzing() {
	CGO_ENABLED=$cgo scripts/fuzz.sh 30s allreduce/compress allreduce/shm cluster/etcdstore \
		cluster/meet cluster/rpc sum/sharded
}

# longer names integration's tests that do more without -short.
longer='^Test(Matrix|CertificatesRotate|Parity|Canonical|RingUnderStrangers)$'

cgo=$(scripts/native.sh) || exit
detector="" short="" above="" cuda="build test"
case "${1:-}" in
"") short=-short cuda=short ;;
race)
	detector=-race
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
} >"$work/beside" 2>&1 &
beside=$!
if [ -n "$short" ]; then
	part "every package" tests $short ./integration ./... # what takes the longest comes first
else
	# The detector does not see into the kernels, for which fewer shapes suffice, nor into
	# integration's processes, which are built without it.
	numeric=$(go list ./compute/... ./model/...)
	part "kernels and models under the race detector" tests $detector -short $numeric
	part "the other packages under the race detector" tests $detector \
		$(go list ./... | grep -vxF -e rondo/integration -e "$numeric")
	part "kernels and models of all shapes" tests $numeric
	part "integration's longer tests" tests -run "$longer" ./integration
fi
wait "$beside"
beside=""
cat "$work/beside"
if [ -z "$short" ]; then
	part "memory against workers" memory
	part "simulated hours" hours
	part "fuzzing" fuzzing
	part "the kernels and headers for GPUs" scripts/test-cuda.sh headers kernels
fi

if [ -f "$work/failed" ]; then
	cat "$work/failed" >&2
	exit 1
fi
say "all tests passed"
