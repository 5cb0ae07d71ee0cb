#!/usr/bin/env python3
"""Trains neural Turing machines on problems of Graves et al. (2014), sections 4.1 to 4.3.

    make build && python3 bench/textbook/turing.py [copy | repeat-copy | recall] [FLAGS]

FLAGS are of `rondo train`. The default is copy: of sequences of 1 to 20 vectors, measured on 512 of
length 20 and, for how it generalises, on 512 of 30 and of 40. The script prints a line for each,
and fails if the first has more than 0.01 bits per bit.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

RONDO = pathlib.Path(__file__).parents[2] / "bin" / "rondo"
FLAGS = "--hidden 100 --batch 16 --clip-scope global --workers 2".split()
MOST = 0.01
PROBLEMS = {  # lengths to learn from, lengths to measure, flags
    "copy": ("1-20", ["20", "30", "40"], "--steps 3000 --lr 0.001 --clip 0.1"),
    "repeat-copy": ("1-5x1-5", ["5x5", "10x5", "5x10"],
                    "--steps 4000 --lr 0.003 --clip 1 --memory-rows 20"),
    "recall": ("2-6", ["6", "8", "12"], "--steps 4000 --lr 0.003 --clip 1 --memory-rows 40"),
}


def main():
    name, extra = "copy", sys.argv[1:]
    if extra and not extra[0].startswith("-"):
        name, extra = extra[0], extra[1:]
    learned, measured, flags = PROBLEMS[name]
    with tempfile.TemporaryDirectory() as run:
        subprocess.run([RONDO, "train", "--task", "turing", "--corpus", f"builtin:{name}:{learned}",
                        "--eval-corpus", f"builtin:{name}:{measured[0]}", "--eval-every", "500",
                        "--checkpoint-dir", run, *FLAGS, *flags.split(), *extra], check=True)
        first = None
        for lengths in measured:
            corpus = f"builtin:{name}:{lengths}"
            result = json.loads(subprocess.run([RONDO, "eval", "--checkpoint", run, "--corpus",
                                                corpus, "--json"], check=True,
                                               capture_output=True).stdout)
            print(f"{corpus}: {result['bits_per_bit']:.6f} bits per bit, "
                  f"{result['wrong_bits']:.6f} of the bits are wrong, "
                  f"{result['right_sequences']:.4f} of the sequences right")
            first = result["bits_per_bit"] if first is None else first
        sys.exit(0 if first <= MOST else f"above {MOST}")


if __name__ == "__main__":
    main()
