#!/usr/bin/env bash
# Prints the folder of a package of PyPI, unpacked, which is downloaded once:
#
#   wheel.sh NAME==VERSION SHA256
#
# The wheel is the one for Linux on x86-64, with this hash; it is not installed. Exit status: 0; 3
# where it is not to be had, with the reason in one line.
set -euo pipefail

package=$1 hash=$2
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rondo/wheels/$package-${hash:0:16}

# unavailable ends the script where there can be no package.
unavailable() {
	echo "rondo: no $package: $*" >&2
	exit 3
}

if [ ! -d "$folder" ]; then
	[ "$(uname -sm)" = "Linux x86_64" ] || unavailable "this is $(uname -sm)"
	python3 -m pip --version >/dev/null 2>&1 || unavailable "install python3 with pip to fetch it"
	mkdir -p "$(dirname "$folder")"
	work=$(mktemp -d "$(dirname "$folder")/making.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo "rondo: fetching $package from PyPI" >&2
	echo "$package --hash=sha256:$hash" >"$work/wanted"
	python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
		--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 \
		--require-hashes -r "$work/wanted" -d "$work" >&2 ||
		unavailable "pip could not download it; is there a network?"
	mkdir "$work/tree"
	python3 -m zipfile -e "$work"/*.whl "$work/tree"
	# A zip archive's files have no mode here.
	find "$work/tree" -path '*/bin/*' -type f -exec chmod +x {} +
	# One that another process has just made is as good as this.
	mv -T "$work/tree" "$folder" 2>/dev/null || [ -d "$folder" ]
fi
echo "$folder"
