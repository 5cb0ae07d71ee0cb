#!/usr/bin/env python3
"""Writes window.json, the trace that Window is held against.

    python3 window.py     (the committed file was written with torch 2.15.0 on a CPU)

Each case is torch.nn.Embedding of the K tokens before a target, joined, then tanh(Linear) in each
layer, then a linear output layer, with the cross-entropy summed over the targets; -1 does not
count. `tokens` [N][K], `targets` [N], `weights` and `gradients` by name, `losses` under plain SGD
with the rate `lr`.
"""
import json
import pathlib

import torch
from torch import nn


class Window(nn.Module):
    def __init__(self, V, E, H, K, layers):
        super().__init__()
        self.embedding, self.output = nn.Embedding(V, E), nn.Linear(H, V)
        self.perceptron = nn.ModuleList(nn.Linear(H if i else K * E, H) for i in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens).flatten(1)
        for layer in self.perceptron:
            x = torch.tanh(layer(x))
        return self.output(x)


def values(tensors):
    return {name: x.flatten().tolist() for name, x in tensors}


cases = []
for V, E, H, K, layers, N in (7, 3, 5, 1, 1, 6), (9, 4, 6, 4, 2, 11), (5, 6, 4, 2, 3, 9):
    torch.manual_seed(K)
    net, lr = Window(V, E, H, K, layers), 0.05
    tokens, targets = torch.randint(V, (N, K)), torch.randint(V, (N,))
    targets[3] = -1
    case = {"vocab": V, "embed": E, "hidden": H, "reads": K, "layers": layers, "lr": lr,
            "tokens": tokens.tolist(), "targets": targets.tolist(), "losses": [],
            "weights": values((n, p.detach()) for n, p in net.named_parameters())}
    for step in range(10):
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens), targets, ignore_index=-1, reduction="sum")
        loss.backward()
        if step == 0:
            case["gradients"] = values((n, p.grad) for n, p in net.named_parameters())
        case["losses"].append(loss.item())
        with torch.no_grad():
            for p in net.parameters():
                p -= lr * p.grad
    cases.append(case)
path = pathlib.Path(__file__).parent / "window.json"
path.write_text(json.dumps(cases) + "\n")
