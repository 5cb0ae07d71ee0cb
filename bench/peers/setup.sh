#!/bin/sh
# Makes the Python environment of the peers' scripts, with packages from PyPI at pinned versions.
#
#   setup.sh           into bench/peers/.venv
#   setup.sh FOLDER    into FOLDER
#
# PYTHON is the interpreter to make it from (default: python3; it needs the module venv). Prints the
# interpreter to run the scripts with; everything else goes to standard error.
#
# PyTorch is pinned to the newest release that these scripts have been run with; numpy is only what
# it asks for. safetensors reads checkpoints (docs/models.md), sacrebleu scores translations,
# tokenizers is what corpus/subword is compared with. What
# else PyTorch needs, it pins or bounds itself. On Linux that includes NVIDIA's libraries: PyPI's
# PyTorch does not start without them, even on a CPU. All take 5.4 GB of disk.
set -eu

torch=2.15.0
numpy=2.4.6
safetensors=0.8.0
sacrebleu=2.6.0
tokenizers=0.23.3
folder=${1:-$(cd "$(dirname "$0")" && pwd)/.venv}

"${PYTHON:-python3}" -m venv "$folder" >&2
"$folder/bin/pip" install --quiet --disable-pip-version-check "torch==$torch" \
	"numpy==$numpy" "safetensors==$safetensors" "sacrebleu==$sacrebleu" \
	"tokenizers==$tokenizers" >&2
"$folder/bin/python" -c 'import torch; torch.zeros(1)' >&2
echo "$folder/bin/python"
