#!/usr/bin/env python3
"""Writes arithmetic as trees in brackets, and trains recursive networks to calculate.

    make build && python3 bench/textbook/trees.py [--root] [flags of rondo train]
    python3 bench/textbook/trees.py --write FILE TREES OPERATIONS [SEED] [--root]

A tree has digits from 0 to 4 as leaves, and 1 to OPERATIONS operations +, - and *; the label of a
node is its value modulo 5, so `(1 (3 (4 4) + (4 4)) * (2 2))` is (4 + 4) * 2 = 1. With --root the
root alone has a label. The networks learn from 10,000 trees of up to 8 operations, and are measured
on 1,000 others, none of which is among them, and on 1,000 of 9 to 16 operations. The script prints
the share of right roots for each cell, and fails if the TreeLSTM is not better than a bag of words.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

RONDO = pathlib.Path(__file__).parents[2] / "bin" / "rondo"
FLAGS = "--embed 32 --batch 32 --epochs 5 --lr 0.005 --clip-scope global".split()
CELLS = ["lstm", "child-sum", "rnn", "bag"]
LEARN, REST, OPERATIONS, LONGER = 10_000, 1_000, 8, 16
MODULUS = 5
OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def grow(rng, operations, root):
    """A random tree: its value, and its text with and without the outer label."""
    if operations == 0:
        value = rng.randrange(MODULUS)
        return value, f"({value} {value})", f"({value})"
    left = rng.randrange(operations)
    (a, named, bare), (b, named2, bare2) = (grow(rng, n, root)
                                            for n in (left, operations - 1 - left))
    operator = rng.choice(sorted(OPERATORS))
    value = OPERATORS[operator](a, b) % MODULUS
    inner = f"{bare} {operator} {bare2}" if root else f"{named} {operator} {named2}"
    return value, f"({value} {inner})", f"({inner})"


def trees(count, least, most, seed, root=False, without=()):
    """Different trees of so many operations, none of which is in without."""
    rng, lines = random.Random(seed), {}
    while len(lines) < count:
        line = grow(rng, rng.randint(least, most), root)[1]
        if line not in without:
            lines[line] = None
    return list(lines)


def write(path, lines):
    pathlib.Path(path).write_text("".join(line + "\n" for line in lines))


def main():
    arguments = sys.argv[1:]
    root = "--root" in arguments
    arguments = [a for a in arguments if a != "--root"]
    if arguments[:1] == ["--write"]:
        count, operations = int(arguments[2]), int(arguments[3])
        write(arguments[1], trees(count, 1, operations, int((arguments[4:] or [1])[0]), root))
        return
    with tempfile.TemporaryDirectory() as folder:
        learn = trees(LEARN, 1, OPERATIONS, 1, root)
        files = {"learn": learn, "rest": trees(REST, 1, OPERATIONS, 2, root, set(learn)),
                 "longer": trees(REST, OPERATIONS + 1, LONGER, 3, root)}
        for name, lines in files.items():
            write(f"{folder}/{name}.txt", lines)
        right = {}
        for cell in CELLS:
            run = f"{folder}/{cell}"
            hidden = [] if cell == "bag" else ["--hidden", "64"]
            subprocess.run([RONDO, "train", "--task", "tree", "--tree-cell", cell, "--corpus",
                            f"{folder}/learn.txt", "--checkpoint-dir", run, *hidden, *FLAGS,
                            *arguments],
                           check=True)
            for name in "rest", "longer":
                result = json.loads(subprocess.run(
                    [RONDO, "eval", "--checkpoint", run, "--corpus", f"{folder}/{name}.txt",
                     "--json"], check=True, capture_output=True).stdout)
                right[cell, name] = result["root_accuracy"]
        print(f"{'cell':<10} {'1 to 8':>8} {'9 to 16':>8}")
        for cell in CELLS:
            print(f"{cell:<10} {right[cell, 'rest']:>8.4f} {right[cell, 'longer']:>8.4f}")
        sys.exit(0 if right["lstm", "rest"] > right["bag", "rest"] else "no better than a bag")


if __name__ == "__main__":
    main()
