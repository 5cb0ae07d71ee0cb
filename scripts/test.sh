#!/bin/sh
# Runs the tests in three parts: every test, and beside it those of the pure-Go build and of the
# build for GPUs: many tests wait for processes, and leave a processor idle. A part that fails does
# not keep the others from running; the last lines name what failed.
#
#   test.sh         each test once, with go test's -short: fewer seeds and smaller shapes
#   test.sh race    each test under the race detector; without it and -short those that do more
#                   then; some fuzzing; of the build for GPUs what test.sh leaves out, and the
#                   kernels' PTX
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

# pure runs the tests of the packages that the pure-Go build changes, and for race of those that
# stand on them.
pure() {
	CGO_ENABLED=0 go test -short -vet=off -timeout 20m \
		./compute ./compute/cpu ./compute/devicetest $above
}

# fuzzing fuzzes what reads the words of other processes: eight targets, two minutes on two cores.
fuzzing() {
	CGO_ENABLED=$cgo scripts/fuzz.sh 30s allreduce/compress allreduce/shm cluster/etcdstore \
		cluster/meet cluster/rpc sum/sharded
}

# longer names integration's tests that do more without -short.
longer='^Test(Matrix|CertificatesRotate|Parity|Canonical|RingUnderStrangers)$'

cgo=$(scripts/native.sh) || exit
race="" detector="" above="" cuda=short
case "${1:-}" in
"") ;;
race)
	race=1 detector=-race above="./model/... ./train/..." cuda="build others"
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
if [ -z "$race" ]; then
	part "every package" tests -short ./integration ./... # what takes the longest comes first
else
	# The detector does not see into the kernels, whose oracles are slow under it, nor into
	# integration's processes, which are built without it.
	others=$(go list ./... | grep -v -e '^rondo/compute' -e '^rondo/integration$')
	more=$(grep -rl --include='*_test.go' 'testing\.Short()' . | xargs -n 1 dirname | sort -u)
	part "every package under the race detector" tests $detector -short $others
	part "what does more without -short" tests $(echo "$more" | grep -v -e integration -e cuda)
	part "what does more of integration" tests -run "$longer" ./integration
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
