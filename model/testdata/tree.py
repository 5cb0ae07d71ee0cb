#!/usr/bin/env python3
"""Writes tree.json, the trace that Tree is held against.

    python3 tree.py     (the committed file was written with torch 2.15.0 on a CPU)

Each case has some trees, node by node as the equations have them, by torch.nn's modules in float64.
`children`, `words` and `targets` are as in Trees: a node stands behind its children, and a target of
-1 does not count. `weights` and `gradients` by name, `losses` (summed over the targets) under plain
SGD with the rate `lr`.
"""
import json
import pathlib
import random

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


class Tree(nn.Module):
    def __init__(self, cell, V, E, H, C):
        super().__init__()
        self.cell = cell
        self.embedding, self.output = nn.Embedding(V, E), nn.Linear(E if cell == "bag" else H, C)
        if cell == "rnn":
            self.leaf, self.compose = nn.Linear(E, H), nn.Linear(2 * H, H)
        elif cell != "bag":
            k = 2 if cell == "lstm" else 1
            self.leaf = nn.Linear(E, 3 * H, bias=False)
            self.compose = nn.Linear(k * H, 3 * H)
            self.forget = nn.Linear(k * H, k * H, bias=False)
            self.forget.bias = nn.Parameter(0.3 * torch.randn(H))

    def lstm(self, a, forgotten):
        i, o, u = a.chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u) + forgotten
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, word, below):
        """The state of a node, whose first number is h."""
        if not below:
            e = self.embedding.weight[word]
            if self.cell == "bag":
                return e, [e]
            if self.cell == "rnn":
                return torch.tanh(self.leaf(e)), None
            return self.lstm(self.leaf(e) + self.compose.bias, 0)
        if self.cell == "bag":
            words = [e for _, below in below for e in below]
            return torch.stack(words).mean(0), words
        h = [state[0] for state in below]
        if self.cell == "rnn":
            return torch.tanh(self.compose(torch.cat(h))), None
        W, b = self.forget.weight, self.forget.bias
        if self.cell == "lstm":
            f = (W @ torch.cat(h)).chunk(2)
            a = self.compose(torch.cat(h))
        else:
            f = [W @ x for x in h]
            a = self.compose(torch.stack(h).sum(0))
        return self.lstm(a, sum(torch.sigmoid(g + b) * c for g, (_, c) in zip(f, below)))

    def forward(self, children, words):
        stack, logits = [], []
        for k, word in zip(children, words):
            below = stack[len(stack) - k:]
            del stack[len(stack) - k:]
            stack.append(self.node(word, below))
            logits.append(self.output(stack[-1][0]))
        return torch.stack(logits)


def grow(rng, leaves, most):
    """A tree in the order of Trees: the numbers of children."""
    if leaves == 1:
        return [0]
    k = rng.randint(2, min(most, leaves))
    cuts = [0, *sorted(rng.sample(range(1, leaves), k - 1)), leaves]
    return [n for a, b in zip(cuts, cuts[1:]) for n in grow(rng, b - a, most)] + [k]


def values(tensors):
    return {name: x.flatten().tolist() for name, x in tensors}


cases = []
for cell, V, E, H, C, sizes, most in (
        ("lstm", 7, 3, 5, 3, (6, 1, 9), 2), ("lstm", 5, 4, 4, 2, (2,), 2),
        ("child-sum", 6, 4, 3, 4, (8, 5, 1), 4), ("rnn", 8, 5, 4, 3, (7, 4, 2), 2),
        ("bag", 6, 4, 1, 3, (5, 3), 3)):
    torch.manual_seed(len(cases))
    rng = random.Random(len(cases))
    net, lr = Tree(cell, V, E, H, C), 0.05
    children = [k for n in sizes for k in grow(rng, n, most)]
    words = [rng.randrange(V) for _ in children]
    targets = torch.tensor([rng.randrange(-1, C) for _ in children])
    case = {"cell": cell, "vocab": V, "embed": E, "hidden": H, "labels": C, "lr": lr,
            "children": children, "words": words, "targets": targets.tolist(), "losses": [],
            "weights": values((n, p.detach()) for n, p in net.named_parameters())}
    for step in range(10):
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(children, words), targets, ignore_index=-1,
                                           reduction="sum")
        loss.backward()
        if step == 0:
            case["gradients"] = values((n, p.grad) for n, p in net.named_parameters()
                                       if p.grad is not None)
        case["losses"].append(loss.item())
        with torch.no_grad():
            for p in net.parameters():
                p -= lr * p.grad
    cases.append(case)
path = pathlib.Path(__file__).parent / "tree.json"
path.write_text(json.dumps(cases) + "\n")
