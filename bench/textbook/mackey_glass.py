#!/usr/bin/env python3
"""Trains an echo state network on the Mackey-Glass series and forecasts it by itself.

    make build && python3 bench/textbook/mackey_glass.py [flags of rondo train]

The series is dx/dt = 0.2 x(t-17) / (1 + x(t-17)^10) - 0.1 x(t), by Runge-Kutta's method with steps
of 0.1, of which every tenth is a row, tanh(x - 1): Jaeger and Haas (2004), "Harnessing
nonlinearity", Science 304. Of 9000 rows the first 3000 are learned from. The script prints NRMSE84:
the root mean squared error of forecasts 84 steps ahead over the last 6000 rows, divided by the
series' standard deviation. Jaeger and Haas have 10^-4.2 = 6.3e-5 with 1000 units, the size here.
"""
import csv
import math
import pathlib
import subprocess
import sys
import tempfile

RONDO = pathlib.Path(__file__).parents[2] / "bin" / "rondo"
DELAY, STEP, EACH, SETTLE = 17, 0.1, 10, 1000  # SETTLE rows are left out at the start
LEARN, REST, AHEAD = 3000, 6000, 84


def slope(x, past):
    return 0.2 * past / (1 + past ** 10) - 0.1 * x


def mackey_glass(rows):
    back = round(DELAY / STEP)
    x = [1.2] * (back + 1)
    for _ in range((rows + SETTLE) * EACH):
        now, past, next_past = x[-1], x[-1 - back], x[-back]
        middle = (past + next_past) / 2
        a = slope(now, past)
        b = slope(now + STEP / 2 * a, middle)
        c = slope(now + STEP / 2 * b, middle)
        d = slope(now + STEP * c, next_past)
        x.append(now + STEP / 6 * (a + 2 * b + 2 * c + d))
    return [math.tanh(v - 1) for v in x[back + SETTLE * EACH::EACH]][:rows]


def main():
    with tempfile.TemporaryDirectory() as folder:
        everything, learned, run = (f"{folder}/{name}" for name in ("all.csv", "first.csv", "run"))
        series = mackey_glass(LEARN + REST)
        for path, part in (everything, series), (learned, series[:LEARN]):
            pathlib.Path(path).write_text("x\n" + "".join(f"{v!r}\n" for v in part))
        subprocess.run([RONDO, "train", "--task", "reservoir", "--hidden", "1000", "--corpus",
                        learned, "--validation-fraction", "0", "--checkpoint-dir", run,
                        *sys.argv[1:]], check=True)
        table = subprocess.run([RONDO, "predict", "--checkpoint", run, "--corpus", everything,
                                "--steps", str(AHEAD)], check=True, capture_output=True, text=True)
        errors = [(float(row["x_predicted"]) - float(row["x"])) ** 2
                  for row in csv.DictReader(table.stdout.splitlines())
                  if int(row["row"]) >= LEARN + AHEAD and row["x"]]
        mean = sum(series) / len(series)
        variance = sum((v - mean) ** 2 for v in series) / len(series)
        print(f"NRMSE84 {math.sqrt(sum(errors) / len(errors) / variance):.3g} over {len(errors)} "
              f"forecasts")


main()
