#!/bin/sh
# Trains translators with the textbook's settings beside the same networks in PyTorch, and prints
# the loss and the BLEU of both, how long they trained (PyTorch's without its start), and at the end
# the means over the seeds with their standard errors:
#
#   PYTHON=$(bench/peers/setup.sh) bench/translate.sh fra-eng.zip
#
# fra-eng.zip is the book's English-French data set. PAIRS is how many of its first pairs are read.
# 600, the default: the book's; the network is evaluated on these and on four sentences of the book.
# 10000: every twentieth pair is held out to evaluate on, without and with attention. SEEDS are the
# seeds (1 2 3), LR is the learning rate (0.005), THREADS are those of each program (2), RONDO is
# the program to run.
set -eu
zip=$1
pairs=${PAIRS:-600} threads=${THREADS:-2} python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
rondo=${RONDO:-$root/bin/rondo}
[ -n "${RONDO:-}" ] || make --no-print-directory -C "$root" build
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unzip -p "$zip" '*fra.txt' | head -n "$pairs" >"$folder/all.tsv"
cd "$folder"

same="--min-frequency 2 --batch 64 --clip 1 --lr ${LR:-0.005}"
if [ "$pairs" = 600 ]; then
	same="$same --hidden 32 --layers 2 --embed 32 --dropout 0.1 --epochs 300 --max-length 10"
	mv all.tsv train.tsv
	printf '%s\t%s\n' 'go .' 'va !' 'i lost .' "j'ai perdu ." "he's calm ." 'il est calme .' \
		"i'm home ." 'je suis chez moi .' >four.tsv
	files="train.tsv four.tsv" networks=none
else
	same="$same --hidden 128 --layers 1 --embed 64 --dropout 0.2 --epochs 15 --max-length 20"
	same="$same --bidirectional"
	awk 'NR % 20 != 0' all.tsv >train.tsv
	awk 'NR % 20 == 0' all.tsv >held.tsv
	files=held.tsv networks="none luong"
fi
for seed in ${SEEDS:-1 2 3}; do
	for attention in $networks; do
		flags="$same --attention $attention --seed $seed --threads $threads"
		echo "rondo, attention $attention, seed $seed"
		begin=$(date +%s%N)
		# The sum is clipped, as PyTorch clips the gradient of the whole batch.
		"$rondo" train --task translate --corpus train.tsv --cell gru --normalize punctuation \
			$flags --workers 1 --clip-scope global --lr-schedule constant --validation-fraction 0 \
			--resume never --checkpoint-dir checkpoints --dashboard off --json >events.json 2>&1 ||
			{ cat events.json; exit 1; }
		echo "trained in $((($(date +%s%N) - begin) / 1000000)) ms, with its start and its end"
		for file in $files; do
			"$rondo" eval --checkpoint checkpoints --corpus $file --json >one.json 2>/dev/null
			sed "s/^{/{\"eval\": \"$file\", /" one.json | tee -a "$attention.rondo"
		done
		if [ -e four.tsv ]; then
			cut -f 1 four.tsv | "$rondo" translate --checkpoint checkpoints 2>/dev/null
		fi
		rm -rf checkpoints
		echo "torch, attention $attention, seed $seed"
		"$python" "$root/bench/peers/torch_translate.py" --corpus train.tsv --eval $files $flags \
			>one.json
		tee -a "$attention.torch" <one.json
	done
done
"$python" - ./*.rondo ./*.torch <<'END'
import collections, json, math, statistics, sys
found = collections.defaultdict(list)
for path in sys.argv[1:]:
    attention, program = path.removeprefix("./").split(".")
    for e in (json.loads(line) for line in open(path) if line.startswith("{")):
        for name in "loss", "bleu", "book_bleu":
            found[e["eval"], attention, name, program].append(e[name])
for (file, attention, name, program), x in sorted(found.items()):
    error = statistics.stdev(x) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    print(f"{file}, attention {attention}: {name} of {program} {statistics.mean(x):.4f}, "
          f"standard error {error:.4f} ({len(x)} seeds)")
END
