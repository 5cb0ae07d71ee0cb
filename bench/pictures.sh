#!/bin/sh
# Makes the two pictures of README.md from real runs, in about five minutes:
#
#   PYTHON=$(bench/peers/setup.sh) bench/pictures.sh
#
#   docs/pictures/page.png   the web page of a job, by Chromium
#   docs/pictures/kill.svg   what the kill of a worker costs, beside torchrun
#
#   bench/pictures.sh page   makes the first alone, which needs no Python
#   bench/pictures.sh kill   makes the second alone
#
# The first needs Chromium and pngquant: apt-get install chromium pngquant. CHROMIUM names another.
set -eu
cd "$(dirname "$0")/.."
wanted=${1:-page kill}
make --no-print-directory build
mkdir -p docs/pictures
work=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill "$job" 2>"$work/gone" || true; rm -rf "$work"' EXIT

# steps prints the newest step of the job whose JSON lines are in $work/log.
steps() {
    sed -n 's/.*"event":"step".*"step":\([0-9]*\).*/\1/p' "$work/log" | tail -n 1
}

# page trains on three workers, kills one on the way, and photographs the page near the end.
page() {
    chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser ||
        command -v google-chrome || true)}
    if [ -z "$chromium" ] || ! command -v pngquant >"$work/where"; then
        echo "pictures.sh: Chromium or pngquant is missing: apt-get install chromium pngquant" >&2
        exit 1
    fi
    bin/rondo train --json --job opticks --workers 3 --threads 1 --cell lstm --hidden 128 \
        --layers 1 --dropout 0 --batch 48 --bptt 64 --optimizer adam --lr 0.004 \
        --lr-schedule cosine --steps 2000 --epochs 0 --validation-fraction 0.05 --eval-every 200 \
        --sample-every 600 --sample-prefix "The Rays of Light " --sample-temperature 0.5 \
        --checkpoint-dir "$work/runs/opticks" --checkpoint-every 500 \
        --inject "kill rank=1 step=500" >"$work/log" 2>"$work/errors" &
    job=$!
    until [ "$(steps)" -ge 1400 ] 2>/dev/null; do
        if ! kill -0 $job 2>/dev/null; then
            cat "$work/errors" >&2
            echo "pictures.sh: the job ended before step 1400" >&2
            exit 1
        fi
        sleep 0.2
    done
    url=$(sed -n 's/.*"event":"page".*\(http:[^"]*\)".*/\1/p' "$work/log")
    "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1120,1190 \
        --user-data-dir="$work/chromium" --timeout=4000 --screenshot="$work/page.png" "$url" \
        2>"$work/chromium.log" || { cat "$work/chromium.log" >&2; exit 1; }
    wait $job
    job=
    pngquant --force --output docs/pictures/page.png "$work/page.png"
}

# cost kills workers of Rondo and of torchrun, far apart, and draws the median of each.
cost() {
    go build -o bin/recovery ./bench/recovery
    python=${PYTHON:-bench/peers/.venv/bin/python}
    bin/recovery -python "$python" -parts kills,torchrun -kills 5 -peer-kills 5 -calm 17s \
        -trace "$work/trace"
    processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    torch=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
    go run ./bench/pictures -trace "$work/trace" -out docs/pictures/kill.svg \
        -note "LSTM of 10M parameters, 3 workers on $(nproc) cores: $processor.
torchrun: PyTorch $torch, a snapshot every 20 steps."
}

for picture in $wanted; do
    case $picture in
    page) page ;;
    kill) cost ;;
    *) echo "pictures.sh: $picture is neither page nor kill" >&2 && exit 2 ;;
    esac
done
ls -l docs/pictures
