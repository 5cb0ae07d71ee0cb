#!/bin/sh
# Trains a byte-level tokenizer on a text and encodes it, beside Hugging Face's tokenizers, by
# turns: training with as many threads as there are cores, encoding on one core.
#
#   PYTHON=$(bench/peers/setup.sh) bench/tokenizer.sh TEXT [SIZE]    # of the vocabulary, 32000
#
# It needs bin/rondo (make build). Both encode line by line with the tokenizer that Rondo has
# trained; the number of tokens must be the same.
set -eu

text=$(realpath "$1")
size=${2:-32000}
cd "$(dirname "$0")/.."
python=${PYTHON:-bench/peers/.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for turn in 1 2; do
	echo "turn $turn"
	begin=$(date +%s.%N)
	bin/rondo tokenizer train --corpus "$text" --vocabulary-size "$size" \
		--output "$folder/tokenizer.json"
	echo "$begin $(date +%s.%N)" | awk '{ printf "rondo train %.2f s\n", $2 - $1 }'
	"$python" bench/peers/tokenizers_turn.py train "$text" "$size"
	taskset -c 0 bin/rondo tokenizer encode --count --tokenizer "$folder/tokenizer.json" <"$text"
	taskset -c 0 "$python" bench/peers/tokenizers_turn.py encode "$text" "$folder/tokenizer.json"
done
