#!/usr/bin/env python3
"""Writes the traces that Rondo's layers are held against: one <cell>-<layers>.json per case.

    python3 trace.py [folder]        (the committed files were written with torch 2.5.1 on a CPU,
                                     those of cells.py's cells with 2.15.0)

A case is a one-hot language model, torch.nn.{RNN,GRU,LSTM} and a linear output layer, on one
batch: initial state zero, loss = mean cross-entropy over the T*B targets. The file holds

    torch, cell, layers, T, B, V, H
    ids, targets    [T][B] token ids
    weights         {name: {shape, data}}, exact float32 values, row-major, torch's names
    loss            before any update
    gradients       {name: {shape, data}} of that loss
    sgd             {lr, losses, weights_after}: plain SGD on the same batch, zero state each
                    step, no clipping; losses[i] is the loss before update i

Everything but the weights is computed in float64, so that the trace is nearer to the truth than
what is compared with it.
"""
import json
import pathlib
import sys
from functools import partial

import torch
from torch import nn

import cells

T, B, V, H = 6, 3, 7, 8
STEPS, LR = 10, 0.5
CELLS = {
    "rnn": lambda layers: nn.RNN(V, H, layers, nonlinearity="tanh"),
    "rnn-relu": lambda layers: nn.RNN(V, H, layers, nonlinearity="relu"),
    "gru": lambda layers: nn.GRU(V, H, layers),
    "lstm": lambda layers: nn.LSTM(V, H, layers),
}
CELLS |= {cell: partial(cells.Layers, cell, V, H) for cell in cells.CELLS}


class LanguageModel(nn.Module):
    def __init__(self, cell, layers):
        super().__init__()
        self.rnn = CELLS[cell](layers)
        self.output = nn.Linear(H, V)

    def forward(self, ids, targets):
        y, _ = self.rnn(nn.functional.one_hot(ids, V).double())
        return nn.functional.cross_entropy(self.output(y).reshape(-1, V), targets.reshape(-1))


def tensors(named, digits):
    return {
        name: {
            "shape": list(t.shape),
            "data": [float(f"{x:.{digits}g}") for x in t.detach().reshape(-1).tolist()],
        }
        for name, t in named
    }


def trace(cell, layers):
    torch.manual_seed(100 * layers + list(CELLS).index(cell))
    model = LanguageModel(cell, layers)  # float32 values, then widened: exact in both
    ids, targets = (torch.randint(0, V, (T, B)) for _ in range(2))
    model = model.double()
    weights = tensors(model.named_parameters(), 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, gradients = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(ids, targets)
        loss.backward()
        if gradients is None:
            gradients = tensors(((n, p.grad) for n, p in model.named_parameters()), 9)
        losses.append(float(f"{loss.item():.12g}"))
        optimizer.step()
    return {
        "torch": torch.__version__,
        "cell": cell, "layers": layers, "T": T, "B": B, "V": V, "H": H,
        "ids": ids.tolist(), "targets": targets.tolist(),
        "weights": weights, "loss": losses[0], "gradients": gradients,
        "sgd": {
            "lr": LR, "losses": losses,
            "weights_after": tensors(model.named_parameters(), 9),
        },
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for cell in CELLS:
        for layers in (1, 2):
            text = json.dumps(trace(cell, layers), separators=(",", ":"))
            (folder / f"{cell}-{layers}.json").write_text(text + "\n")


main()
