#!/bin/sh
# Generates the Go code of the protocol buffers.
#
#   generate.sh        over what is committed
#   generate.sh check  elsewhere, and fails if what is committed differs
#
# PATH must have protoc and the plugins protoc-gen-go and protoc-gen-go-grpc.
set -eu
cd "$(dirname "$0")/.."

generate() { # into folder $1
	protoc -I proto \
		--go_out="$1" --go_opt=module=rondo \
		--go-grpc_out="$1" --go-grpc_opt=module=rondo \
		proto/rondo/v1/*.proto
}

if [ "${1:-}" != check ]; then
	generate .
	exit 0
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
generate "$fresh"
# The headers name the version of protoc, which may be any: the plugins' versions are pinned.
if ! diff -r -u --ignore-matching-lines='^//.*[[:space:]]protoc  *v' \
	--exclude='*.proto' proto "$fresh/proto"; then
	echo "rondo: the generated code differs from proto/rondo/v1/*.proto: run make generate" >&2
	exit 1
fi
