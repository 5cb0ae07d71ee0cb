#!/usr/bin/env bash
# Builds commands into bin, and shows how far it is.
#
#   build.sh PACKAGE...      for example: build.sh ./cmd/rondo
#
# CGO_ENABLED and GOFLAGS come from the environment; the Makefile sets them. On a terminal the
# progress is one line that changes, elsewhere a line every ten seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Symbol table and DWARF are left out. A panic prints functions, files and lines without them.
ldflags="-s -w"

# count DOING DONE OF reads the names of modules or packages that go prints when it begins with
# them, and shows their number: "downloading: 37 modules, 12 s". Other lines pass.
count() {
	local number=0 told=$SECONDS begun=$SECONDS line status before="rondo: " after=$'\n'
	if [ -t 2 ]; then
		before=$'\r\033[Krondo: ' after=""
	fi
	while true; do
		status=0
		read -r -t 1 line || status=$?
		if [ $status = 0 ]; then
			case "${line#go: downloading }" in
			*[!A-Za-z0-9_.~+/\ -]*) echo "$line" >&2 ;;
			*) number=$((number + 1)) ;;
			esac
		elif [ $status -le 128 ]; then # the end; a timeout is above 128
			break
		fi
		if [ $number -gt 0 ] && { [ -t 2 ] || [ $((SECONDS - told)) -ge 10 ]; }; then
			told=$SECONDS
			printf '%s%s: %d %s, %d s%s' "$before" "$1" $number "$3" $((SECONDS - begun)) \
				"$after" >&2
		fi
	done
	if [ $number -gt 0 ]; then
		printf '%s%s: %d %s in %d s\n' "$before" "$2" $number "${3##* }" $((SECONDS - begun)) >&2
	fi
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
go list -deps "$@" 2>&1 >"$list" | count downloading downloaded modules
go build -v -ldflags "$ldflags" -o bin/ "$@" 2>&1 |
	count "compiling, then linking" compiled "of at most $(wc -l <"$list") packages"
