#!/bin/sh
# Makes the Python environment of the peers' scripts, with packages from PyPI at pinned versions.
#
#   setup.sh           into bench/peers/.venv
#   setup.sh FOLDER    into FOLDER
#
# PYTHON is the interpreter to make it from (default: python3; it needs the module venv). Prints the
# interpreter to run the scripts with; everything else goes to standard error.
#
# PyTorch is pinned to the version with which the figures of bench/README.md were measured and whose
# timeouts of torchrun it names, so that they can be measured again; numpy is only what it asks for.
# What else PyTorch needs, it pins or bounds itself.
set -eu

torch=2.5.1
numpy=2.0.2
folder=${1:-$(cd "$(dirname "$0")" && pwd)/.venv}

"${PYTHON:-python3}" -m venv "$folder" >&2
"$folder/bin/pip" install --quiet --disable-pip-version-check "torch==$torch" \
	"numpy==$numpy" >&2
"$folder/bin/python" -c 'import torch; torch.zeros(1)' >&2
echo "$folder/bin/python"
