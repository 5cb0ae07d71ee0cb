#!/bin/sh
# The bidirectional classifier and tagger beside PyTorch, by turns, each with two threads: one layer
# of 256 units each way, an embedding of 128, 5,000 words, batches of 32 texts of up to 64 words.
#
#   PYTHON=$(bench/peers/setup.sh) bench/labels.sh          # 200 steps a turn
#   PYTHON=$(bench/peers/setup.sh) bench/labels.sh 50
#
# It needs bin/rondo (make build). Each side prints the median tokens/s of its steps.
set -eu

cd "$(dirname "$0")/.."
steps=${1:-200}
python=${PYTHON:-bench/peers/.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for task in classify tag; do
	file=$folder/examples.tsv
	[ "$task" = classify ] || file=$folder/examples.conll
	"$python" bench/peers/torch_labels.py --write "$file"
	for cell in lstm gru; do
		for turn in 1 2; do
			echo "$task, $cell, turn $turn"
			bin/rondo train --task "$task" --corpus "$file" --cell "$cell" --bidirectional \
				--embed 128 --hidden 256 --layers 1 --batch 32 --dropout 0 --clip-scope global \
				--validation-fraction 0 --workers 1 --threads 2 --device cpu --steps "$steps" \
				--checkpoint-dir none --json 2>"$folder/errors" >"$folder/events" || {
				cat "$folder/errors" >&2
				exit 1
			}
			sed -n 's/^{"event":"done".*"tokens_per_second":\([0-9.]*\).*/rondo \1/p' \
				"$folder/events"
			"$python" -W ignore bench/peers/torch_labels.py --corpus "$file" --cell "$cell" \
				--threads 2 --steps "$steps"
		done
	done
done
