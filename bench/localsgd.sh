#!/bin/sh
# Trains one model on the same tokens, once with each step's gradient summed and then in rounds of
# 16 steps (--sync-every), and prints the validation losses, with their ratio to the first:
#
#   bench/localsgd.sh tinyshakespeare.txt                 # two workers, 3000 steps
#   WORKERS=4 STEPS=6000 bench/localsgd.sh tinyshakespeare.txt
#
# It fails if with some --optimizer all ways of rounds end more than 3 % above the first.
set -eu
text=$(realpath "${1:?usage: bench/localsgd.sh TEXT}")
cd "$(dirname "$0")/.."
make --no-print-directory build
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# loss prints the validation loss after the last step of a job with these flags.
loss() {
    if ! bin/rondo train --corpus "$text" --validation-fraction 0.05 --hidden 128 \
        --steps "${STEPS:-3000}" --epochs 0 --workers "${WORKERS:-2}" --threads 1 \
        --sample-tokens 0 "$@" >"$out/log" 2>&1; then
        cat "$out/log" >&2
        exit 1
    fi
    sed -n 's/^evaluation at step .*: loss \([0-9.]*\),.*/\1/p' "$out/log" | tail -n 1
}

failed=0
for inner in "adam --lr 0.004" "sgd --lr 2"; do
    sum=$(loss --optimizer $inner) # two words of it are flags
    printf '%-16s  %-44s  %s\n' "$inner" "a sum each step" "$sum"
    for outer in "average" "nesterov --outer-momentum 0.5" "nesterov --outer-momentum 0.9"; do
        loss --optimizer $inner --sync-every 16 --outer-optimizer $outer >"$out/$outer"
        printf '%-16s  %-44s  %s  %s\n' "$inner" "--outer-optimizer $outer" "$(cat "$out/$outer")" \
            "$(echo "$(cat "$out/$outer") $sum" | awk '{printf "%.4f", $1 / $2}')"
    done
    cat "$out"/average "$out"/nesterov* | awk -v sum="$sum" '$1 <= 1.03 * sum {ok = 1}
        END {exit !ok}' || failed=1
done
exit $failed
