#!/usr/bin/env python3
"""Writes stories with questions, and trains a memory network to answer them.

    make build && python3 bench/textbook/stories.py [flags of rondo train]
    python3 bench/textbook/stories.py --write FILE STORIES [SEED]

The stories are of the kind of bAbI's first task, with a single supporting fact (Weston et al. 2015,
arXiv:1502.05698), in its format: people go to places, and after every two sentences there is a
question where one of them is. The network learns from 2,000 stories (10,000 questions) and is
measured on 200 others. The script prints the share of right answers, and fails below 95%.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

RONDO = pathlib.Path(__file__).parents[2] / "bin" / "rondo"
PEOPLE = ["Mary", "John", "Sandra", "Daniel"]
PLACES = ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"]
VERBS = ["moved to", "went to", "travelled to", "journeyed to", "went back to"]
QUESTIONS = 5  # of a story, each after two sentences
LEARN, REST, LEAST = 2000, 200, 0.95


def stories(count, seed):
    rng, lines = random.Random(seed), []
    for _ in range(count):
        where, number = {}, 0
        for _ in range(QUESTIONS):
            for _ in range(2):
                person, number = rng.choice(PEOPLE), number + 1
                where[person] = rng.choice(PLACES), number
                lines.append(f"{number} {person} {rng.choice(VERBS)} the {where[person][0]}.")
            person, number = rng.choice(sorted(where)), number + 1
            place, fact = where[person]
            lines.append(f"{number} Where is {person}? \t{place}\t{fact}")
    return "".join(line + "\n" for line in lines)


def main():
    if sys.argv[1:2] == ["--write"]:
        path, count, seed = sys.argv[2], int(sys.argv[3]), int((sys.argv[4:] or [1])[0])
        pathlib.Path(path).write_text(stories(count, seed))
        return
    with tempfile.TemporaryDirectory() as folder:
        learned, others, run = (f"{folder}/{name}" for name in ("learn.txt", "rest.txt", "run"))
        pathlib.Path(learned).write_text(stories(LEARN, 1))
        pathlib.Path(others).write_text(stories(REST, 2))
        subprocess.run([RONDO, "train", "--task", "answer", "--corpus", learned, "--hidden", "32",
                        "--epochs", "10", "--lr", "0.01", "--checkpoint-dir", run, *sys.argv[1:]],
                       check=True)
        result = json.loads(subprocess.run([RONDO, "eval", "--checkpoint", run, "--corpus", others,
                                            "--json"], check=True, capture_output=True).stdout)
        print(f"accuracy {result['accuracy']:.4f} of {result['tokens']} answers")
        sys.exit(0 if result["accuracy"] >= LEAST else "below 0.95")


if __name__ == "__main__":
    main()
