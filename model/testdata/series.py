#!/usr/bin/env python3
"""Writes the traces that models of time series are held against: series-<cell>-<layers>.json.

    python3 series.py [folder]      (the committed files were written with torch 2.15.0 on a CPU)

A case is torch.nn.{RNN,GRU,LSTM} on rows of F numbers, a linear output layer for C of the columns,
and torch.nn.MSELoss against the next row's. Two segments are read in turn; the second starts from
the state of the first, which has no gradient.

    deep: with deep.py's deep input, transitions and output
    through: each layer also reads its output THROUGH steps before
    cell, layers, T, B, F, H, columns (the predicted ones)
    series    [rows*F]
    rows      [2][T*B] numbers of the rows that each segment reads; the targets are the next ones
    weights, losses [2], gradients [2] of each loss
    ahead     K
    forecasts [rows*K*C] after each row the predictions of 1 to K steps ahead: number k-1 from the
              rows up to k-1 before, and from there the network's own predictions. Columns that are
              not predicted keep the series' values. 0 where there are no such rows.
"""
import json
import pathlib
import sys

import torch
from torch import nn

import deep

T, B, F, H, ROWS, AHEAD = 4, 3, 3, 5, 24, 4
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CASES = [("rnn", 1, [0, 1, 2]), ("gru", 2, [2, 0]), ("lstm", 2, [1]), ("lstm", 2, [0, 2], "deep"),
         ("lstm", 2, [1, 2], "through")]
THROUGH = 3


class Model(nn.Module):
    def __init__(self, cell, layers, outputs):
        super().__init__()
        self.rnn = CELLS[cell](F, H, layers)
        self.output = nn.Linear(H, outputs)

    def forward(self, x, state=None):
        y, state = self.rnn(x, state)
        return self.output(y), state


class Deep(nn.Module):
    def __init__(self, cell, layers, outputs):
        super().__init__()
        self.deep_input = deep.tanh_layers(deep.INPUT, F, H)
        self.rnn = nn.ModuleList(CELLS[cell](H, H) for _ in range(layers))
        self.transition = deep.transitions(layers, 1, H)
        self.deep_output = deep.tanh_layers(deep.OUTPUT, H, H)
        self.output = nn.Linear(H, outputs)

    def forward(self, x, state=None):
        x, after = deep.through(self.deep_input, x), []
        for k, layer in enumerate(self.rnn):
            x, last = deep.run(layer, self.transition[k], x, state and state[k])
            after.append(last)
        return self.output(deep.through(self.deep_output, x)), after


class Through(nn.Module):
    def __init__(self, cell, layers, outputs):
        super().__init__()
        self.rnn = nn.ModuleList(CELLS[cell]((H if k else F) + H, H) for k in range(layers))
        self.output = nn.Linear(H, outputs)

    def forward(self, x, state=None):
        after = []
        for k, layer in enumerate(self.rnn):
            inner, past = state[k] if state else (None, [x.new_zeros(x.shape[1], H)] * THROUGH)
            steps = []
            for row in x:
                y, inner = layer(torch.cat([row, past[0]], 1)[None], inner)
                past = past[1:] + [y[0]]
                steps.append(y[0])
            x = torch.stack(steps)
            after.append([inner, past])
        return self.output(x), after


def tensors(named):
    return {deep.named(n): {"shape": list(t.shape), "data": t.detach().reshape(-1).tolist()}
            for n, t in named}


def detach(state):
    if isinstance(state, list):
        return list(map(detach, state))
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def forecasts(model, series, columns):
    out = torch.zeros(ROWS, AHEAD, len(columns)).double()
    with torch.no_grad():
        for origin in range(ROWS):
            y, state = model(series[:origin + 1, None])
            for k in range(AHEAD):
                if origin + k >= ROWS:
                    break
                out[origin + k, k] = y[-1, 0]
                row = series[min(origin + k + 1, ROWS - 1)].clone()
                row[columns] = y[-1, 0]
                y, state = model(row[None, None], state)
    return out.reshape(-1).tolist()


def trace(cell, layers, columns, kind=""):
    torch.manual_seed(layers + list(CELLS).index(cell))
    model = {"deep": Deep, "through": Through}.get(kind, Model)(cell, layers, len(columns))
    series = torch.randn(ROWS, F)
    weights = tensors(model.named_parameters())
    model, series = model.double(), series.double()
    starts, losses, gradients, rows, state = [0, 8, 15], [], [], [], None
    for segment in range(2):
        at = torch.tensor([[s + segment * T + t for s in starts] for t in range(T)])
        model.zero_grad()
        y, state = model(series[at], state)
        loss = nn.functional.mse_loss(y, series[at + 1][:, :, columns])
        loss.backward()
        state = detach(state)
        losses.append(loss.item())
        gradients.append(tensors((n, p.grad) for n, p in model.named_parameters()))
        rows.append(at.reshape(-1).tolist())
    return {"torch": torch.__version__, "cell": cell, "layers": layers, "T": T, "B": B, "F": F,
            "H": H, "columns": columns, "series": series.reshape(-1).tolist(), "rows": rows,
            "weights": weights, "losses": losses, "gradients": gradients, "ahead": AHEAD,
            "forecasts": forecasts(model, series, columns)} | ({kind: True} if kind else {})


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for case in CASES:
        text = json.dumps(trace(*case), separators=(",", ":"))
        name = "-".join(map(str, ("series", *case[:2], *case[3:])))
        (folder / f"{name}.json").write_text(text + "\n")


main()
