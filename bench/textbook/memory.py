#!/usr/bin/env python3
"""Trains cells on the two standard tests of long memory, and prints what each has learned.

    make build && python3 bench/textbook/memory.py [--task adding|copy] [--only CELL] [--length T]
        [--steps N] [flags of rondo train]

adding  T rows of a number from U(0, 1) and a mark, which is 1 in one row of each half and 0 in the
        others: the sum of the two marked numbers, after the last row (Hochreiter and Schmidhuber
        1997, section 5.4, as in Le et al. 2015, arXiv:1504.00941, section 4.1). Always answering 1
        has a mean squared error of 1/6 = 0.167. Printed: that of 512 other sequences.
copy    ten symbols of eight, T blanks of which the last asks, and ten blanks: repeat the symbols in
        the last ten steps, blanks before (Hochreiter and Schmidhuber 1997; Arjovsky et al. 2016,
        arXiv:1511.06464, section 5.1). Knowing all but the symbols has a cross-entropy of
        10 ln 8 / (T+20). Printed: that of 256 other sequences, in nats.

T is 200 for adding and 100 for copy. The data are drawn from a fixed seed. skip has connections
over T/10 steps in adding, and in copy over the T+10 steps from a symbol to its repetition.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

RONDO = pathlib.Path(__file__).parents[2] / "bin" / "rondo"
SYMBOLS = 10
CELLS = {  # flags of each
    "rnn": "--cell rnn --init orthogonal",
    "leaky": "--cell leaky --leak {leak} --init orthogonal",
    "clockwork": "--cell clockwork --periods 1,2,4,8,16,32,64,128",
    "irnn": "--cell rnn-relu --init identity --lr 0.001",
    "lstm": "--cell lstm --forget-bias 1",
    "skip": "--cell rnn --init orthogonal --skip-through-time {skip}",
}
COMMON = ("--layers 1 --dropout 0 --optimizer adam --lr 0.003 --lr-schedule constant --clip 1 "
          "--clip-scope global --epochs 1000 --resume never --dashboard off --json")


def adding(path, count, length, rng):
    with open(path, "w") as file:
        file.write("number,mark,sum\n")
        for _ in range(count):
            numbers = [rng.random() for _ in range(length)]
            marked = rng.randrange(length // 2), rng.randrange(length // 2, length)
            total = sum(numbers[i] for i in marked)
            file.writelines(f"{v:.6f},{int(t in marked)},{total:.6f}\n"
                            for t, v in enumerate(numbers))


def copying(path, count, length, rng):
    with open(path, "w") as file:
        for _ in range(count):
            symbols = rng.choices("abcdefgh", k=SYMBOLS)
            read = symbols + ["-"] * (length - 1) + ["?"] + ["-"] * SYMBOLS
            say = ["-"] * (length + SYMBOLS) + symbols
            file.write("".join(f"{r}\t{s}\n" for r, s in zip(read, say)) + "\n")


TASKS = {
    "adding": (adding, 200, ".csv", "--task regress --sequences --target sum --bptt {length} "
               "--hidden 64 --batch 32", 5000, 512, lambda T: 1 / 6),
    "copy": (copying, 100, ".conll", "--task tag --tokenizer word --hidden 128 "
             "--batch 32", 3000, 256, lambda T: SYMBOLS * math.log(8) / (T + 2 * SYMBOLS)),
}


def train(command):
    last = {}
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    for line in done.stdout.splitlines():
        event = json.loads(line)
        if event.get("event") in ("eval", "done"):
            last[event["event"]] = event
    return last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--only", default="")
    parser.add_argument("--length", type=int)
    parser.add_argument("--steps", type=int, default=3000)
    given, more = parser.parse_known_args()
    for name, (write, length, end, flags, train_on, held, baseline) in TASKS.items():
        if given.task not in (None, name):
            continue
        length = given.length or length
        rng = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            data, test = folder + "/train" + end, folder + "/test" + end
            write(data, train_on, length, rng)
            write(test, held, length, rng)
            print(f"{name}, T = {length}: baseline {baseline(length):.4f}", flush=True)
            for cell, cell_flags in CELLS.items():
                if given.only not in cell:
                    continue
                line = f"{flags} {COMMON} {cell_flags}".format(
                    length=length, leak=0.02,
                    skip=length + SYMBOLS if name == "copy" else max(2, length // 10))
                if name == "copy" and cell == "skip":
                    line += " --embed 16"
                last = train([RONDO, "train", "--corpus", data, "--eval-corpus", test, "--steps",
                              str(given.steps), "--checkpoint-dir", "none", *line.split(), *more])
                loss = last["eval"]["mse" if name == "adding" else "loss"]
                ratio = loss / baseline(length)
                print(f"  {cell:10} {loss:10.2e}  {ratio:5.2f} of the baseline", flush=True)


main()
