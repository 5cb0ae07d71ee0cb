#!/bin/sh
# Recipe zaremba-2014-small beside PyTorch: the validation perplexity after the same epochs on the
# same texts, each with two threads. A text has words and spaces, and a sentence in each line.
#
#   PYTHON=$(bench/peers/setup.sh) bench/words.sh TRAIN VALID
#   EPOCHS=3 HOLD=1 bench/words.sh TRAIN VALID       # the rate halves after each epoch
#
# It needs bin/rondo (make build). It fails if Rondo's perplexity is more than 1% above PyTorch's.
set -eu
usage="usage: bench/words.sh TRAIN VALID"
train=$(realpath "${1:?$usage}") valid=$(realpath "${2:?$usage}")
cd "$(dirname "$0")/.."
python=${PYTHON:-bench/peers/.venv/bin/python}
epochs=${EPOCHS:-13} hold=${HOLD:-4} threads=${THREADS:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if ! bin/rondo train --recipe zaremba-2014-small --corpus "$train" --eval-corpus "$valid" \
    --epochs "$epochs" --lr-hold "$hold" --workers 1 --threads "$threads" --device cpu \
    --dashboard off --checkpoint-dir "$folder/run" >"$folder/log" 2>&1; then
    cat "$folder/log" >&2
    exit 1
fi
grep '^done' "$folder/log"
bin/rondo eval --checkpoint "$folder/run" --corpus "$valid" --rows 1 --threads "$threads" \
    >"$folder/eval" 2>"$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
own=$(sed -n 's/^perplexity //p' "$folder/eval")
"$python" bench/peers/torch_words.py --threads "$threads" --epochs "$epochs" --hold "$hold" \
    "$train" "$valid" | tee "$folder/torch"
peer=$(sed -n 's/.*"perplexity": \([0-9.]*\).*/\1/p' "$folder/torch" | tail -n 1)
echo "$own $peer" | awk '{
    printf "perplexity of rondo %.2f, of PyTorch %.2f: %.3f\n", $1, $2, $1 / $2
    exit $1 > 1.01 * $2
}'
