#!/usr/bin/env python3
"""Writes the traces that models with an adaptive softmax are held against: adaptive-<cell>.json.

    python3 adaptive.py [folder]     (the committed files were written with torch 2.15.0 on a CPU)

A case is embedding -> torch.nn.{GRU,LSTM} -> torch.nn.AdaptiveLogSoftmaxWithLoss with a bias in
its head. The file has the fields of compute/testdata/trace.py, and

    embed, cutoffs
    logp        [T*B][V] the logarithms of all probabilities, before any update
"""
import json
import pathlib
import sys

import torch
from torch import nn

T, B, V, E, H = 5, 3, 14, 4, 16
STEPS, LR = 6, 0.5
CASES = {"gru": (nn.GRU, [6]), "lstm": (nn.LSTM, [3, 7])}
NAMES = {"output.head.weight": "output.weight", "output.head.bias": "output.bias"}


class LanguageModel(nn.Module):
    def __init__(self, cell, cutoffs):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.rnn = cell(E, H)
        self.output = nn.AdaptiveLogSoftmaxWithLoss(H, V, cutoffs, head_bias=True)

    def forward(self, ids):
        return self.rnn(self.embedding(ids))[0].reshape(-1, H)


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {NAMES.get(name, name): {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, name, cell, cutoffs):
    torch.manual_seed(number)
    model = LanguageModel(cell, cutoffs)  # float32 values, then widened: exact in both
    ids, targets = (torch.randint(0, V, (T, B)) for _ in range(2))
    model = model.double()
    weights = tensors(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, gradients = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = model(ids)
        loss = model.output(x, targets.reshape(-1)).loss
        loss.backward()
        if gradients is None:
            gradients = tensors((n, p.grad) for n, p in model.named_parameters())
            logp = [rounded(row) for row in model.output.log_prob(x)]
        losses.append(float(f"{loss.item():.12g}"))
        optimizer.step()
    return {
        "torch": torch.__version__,
        "cell": name, "layers": 1, "T": T, "B": B, "V": V, "H": H, "embed": E, "cutoffs": cutoffs,
        "ids": ids.tolist(), "targets": targets.tolist(),
        "weights": weights, "loss": losses[0], "logp": logp, "gradients": gradients,
        "sgd": {"lr": LR, "losses": losses, "weights_after": tensors(model.named_parameters())},
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, (name, case) in enumerate(CASES.items()):
        text = json.dumps(trace(number, name, *case), separators=(",", ":"))
        (folder / f"adaptive-{name}.json").write_text(text + "\n")


main()
