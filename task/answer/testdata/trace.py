#!/usr/bin/env python3
"""Writes the traces that the memory network is held against: <case>.json.

    python3 trace.py [folder]      (the committed files were written with torch 2.15.0 on a CPU)

The equations of Sukhbaatar et al. 2015 (arXiv:1503.08895) in PyTorch, in float64, with its
gradients.

    words, answers, hidden, hops, rows, layer_wise, position, temporal   see answer.Config
    sentences, question   ids of words
    answer    the right one
    tensors   name: weights, flat
    loss      in nats
    gradients name: of the loss, flat
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as f

WORDS, ANSWERS, HIDDEN, ROWS = 9, 4, 5, 4
CASES = {  # hops, layer-wise, position, temporal
    "adjacent": (3, False, True, True),
    "layer-wise": (2, True, True, True),
    "bag": (2, False, False, False),
    "layer-wise-bag": (3, True, False, True),
}
SENTENCES = [[1, 2], [3, 4, 5], [6, 1, 1], [2], [7, 8], [3, 2, 1]]
QUESTION, ANSWER = [5, 6, 0], 2


def embed(table, sentence, position):
    """Section 4.1: the sum of the words, with position encoding weighted by their places."""
    j = torch.arange(1, len(sentence) + 1, dtype=torch.float64)[:, None] / len(sentence)
    k = torch.arange(1, HIDDEN + 1, dtype=torch.float64)[None, :] / HIDDEN
    weights = (1 - j) - k * (1 - 2 * j) if position else torch.ones(len(sentence), 1)
    return (weights * table[sentence]).sum(0)


def loss(w, hops, layer_wise, position, temporal):
    tables = [w[k] for k in w if k.startswith("embedding")]
    times = [w[k] for k in w if k.startswith("time")]
    kept = SENTENCES[-ROWS:]

    def remember(e):
        rows = [embed(tables[e], s, position) for s in kept]
        if temporal:
            rows = [row + times[e][len(kept) - 1 - i] for i, row in enumerate(rows)]
        return torch.stack(rows)

    u = embed(tables[2 if layer_wise else 0], QUESTION, position)
    for k in range(hops):
        m, c = (remember(0), remember(1)) if layer_wise else (remember(k), remember(k + 1))
        p = (m @ u).softmax(0)
        u = (w["hop.weight"] @ u if layer_wise else u) + p @ c
    return f.cross_entropy((w["output.weight"] @ u)[None], torch.tensor([ANSWER]))


def write(folder, name, hops, layer_wise, position, temporal):
    torch.manual_seed(len(name))
    tables = 3 if layer_wise else hops + 1
    shapes = {f"embedding.{i}.weight": (WORDS, HIDDEN) for i in range(tables)}
    if temporal:
        for i in range(2 if layer_wise else hops + 1):
            shapes[f"time.{i}.weight"] = (ROWS, HIDDEN)
    if layer_wise:
        shapes["hop.weight"] = (HIDDEN, HIDDEN)
    shapes["output.weight"] = (ANSWERS, HIDDEN)
    w = {k: (0.7 * torch.randn(s, dtype=torch.float64)).requires_grad_() for k, s in shapes.items()}
    total = loss(w, hops, layer_wise, position, temporal)
    total.backward()
    flat = lambda values: {k: v.flatten().tolist() for k, v in values.items()}
    (folder / f"{name}.json").write_text(
        json.dumps(
            dict(words=WORDS, answers=ANSWERS, hidden=HIDDEN, hops=hops, rows=ROWS,
                 layer_wise=layer_wise, position=position, temporal=temporal, loss=total.item(),
                 sentences=SENTENCES, question=QUESTION, answer=ANSWER,
                 tensors=flat({k: v.detach() for k, v in w.items()}),
                 gradients=flat({k: v.grad for k, v in w.items()}))
        )
        + "\n"
    )


folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
for name, case in CASES.items():
    write(folder, name, *case)
