#!/bin/sh
# Trains one model on the same tokens, once with each step's gradient summed and then in rounds of
# 16 steps (--sync-every) with the default outer optimizer and with others, and prints the
# validation losses, with their ratio to the first, and whether that is at most 3 % above it:
#
#   bench/localsgd.sh tinyshakespeare.txt                 # two workers and four, 3000 steps
#   WORKERS=8 STEPS=6000 bench/localsgd.sh tinyshakespeare.txt
#
# It fails if with some --optimizer the default ends more than 3 % above the first.
set -eu
text=$(realpath "${1:?usage: bench/localsgd.sh TEXT}")
cd "$(dirname "$0")/.."
make --no-print-directory build
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# loss prints the validation loss after the last step of a job with these flags.
loss() {
    if ! bin/rondo train --corpus "$text" --validation-fraction 0.05 --hidden 128 \
        --layers 1 --dropout 0 --batch 32 --bptt 35 --lr-schedule constant \
        --steps "${STEPS:-3000}" --epochs 0 --workers "$workers" --threads 1 \
        --sample-tokens 0 --checkpoint-dir none "$@" >"$out/log" 2>&1; then
        cat "$out/log" >&2
        exit 1
    fi
    sed -n 's/^evaluation at step .*: loss \([0-9.]*\),.*/\1/p' "$out/log" | tail -n 1
}

# row prints what the workers have trained with, the loss, and how it compares with sum's.
row() {
    echo "$2 $sum" | awk -v what="$(printf '%d  %-17s  %-38s' "$workers" "$inner" "$1")" \
        '{printf "%s  %.4f  %.3f  %s\n", what, $1, $1 / $2, $1 <= 1.03 * $2 ? "yes" : "no"}'
}

failed=0
echo "workers, --optimizer, rounds, loss, ratio, within 3 %"
for workers in ${WORKERS:-2 4}; do
    for inner in "adam --lr 0.004" "sgd --lr 2"; do
        sum=$(loss --optimizer $inner) # several words of it are flags
        row "a sum each step" "$sum"
        row "default" "$(loss --optimizer $inner --sync-every 16)" | tee "$out/row"
        grep -q 'yes$' "$out/row" || failed=1
        for outer in "--outer-optimizer average" "--outer-momentum 0.9"; do
            row "$outer" "$(loss --optimizer $inner --sync-every 16 $outer)"
        done
    done
done
exit $failed
