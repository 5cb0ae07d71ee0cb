#!/usr/bin/env python3
"""Writes the traces that the neural Turing machine is held against: <case>.json.

    python3 trace.py [folder]      (the committed files were written with torch 2.15.0 on a CPU)

The equations of Graves et al. 2014 (arXiv:1410.5401) in PyTorch, in float64, with its gradients.

    inputs, outputs, hidden, feed_forward, rows, width, heads, shift   see turing.Config
    first     the first step with targets
    x         [T, inputs]; y: [T-first, outputs]
    tensors   name: weights, flat
    loss      the sum over the targets, in nats
    gradients name: of the loss, flat
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as f

CASES = {
    "lstm": (3, 2, 4, False, 5, 3, 1, 1),
    "feed-forward": (2, 2, 3, True, 4, 3, 1, 1),
    "heads": (3, 2, 3, False, 6, 2, 2, 2),
}
T, FIRST = 6, 3


def address(raw, memory, before, shift):
    """Equations 5 to 9: raw is a key [M], its strength, the gate, the shifts and the exponent."""
    rows, width = memory.shape
    count = 2 * shift + 1
    key, beta = raw[:width].tanh(), f.softplus(raw[width])
    gate = raw[width + 1].sigmoid()
    moves = raw[width + 2 : width + 2 + count].softmax(0)
    gamma = 1 + f.softplus(raw[width + 2 + count])
    cosine = memory @ key / (memory.norm(dim=1) * key.norm() + 1e-8)
    weights = gate * (beta * cosine).softmax(0) + (1 - gate) * before
    shifted = sum(moves[j] * weights.roll(j - shift) for j in range(count))
    powers = shifted**gamma
    return powers / powers.sum()


def loss(w, x, y, outputs, hidden, feed_forward, rows, width, heads, shift):
    memory = torch.full((rows, width), 1e-6, dtype=torch.float64)
    start = torch.zeros(rows, dtype=torch.float64)
    start[0] = 1
    reading, writing = [start] * heads, [start] * heads
    read = torch.zeros(heads * width, dtype=torch.float64)
    h = c = torch.zeros(hidden, dtype=torch.float64)
    n = width + 3 + 2 * shift + 1
    total = 0
    for t in range(len(x)):
        a = w["controller.weight_ih"] @ torch.cat([x[t], read]) + w["controller.bias"]
        if feed_forward:
            h = a.tanh()
        else:
            i, g, z, o = (a + w["controller.weight_hh"] @ h).chunk(4)
            c = g.sigmoid() * c + i.sigmoid() * z.tanh()
            h = o.sigmoid() * c.tanh()
        raw = w["heads.weight"] @ h + w["heads.bias"]
        sizes = [n] * heads + [n + 2 * width] * heads
        raws = raw.split(sizes)
        writing = [address(r[:n], memory, b, shift) for r, b in zip(raws[heads:], writing)]
        keep, add = 1, 0
        for r, weights in zip(raws[heads:], writing):
            keep = keep * (1 - torch.outer(weights, r[n : n + width].sigmoid()))
            add = add + torch.outer(weights, r[n + width :].tanh())
        memory = memory * keep + add
        reading = [address(r, memory, b, shift) for r, b in zip(raws[:heads], reading)]
        read = torch.cat([weights @ memory for weights in reading])
        if t >= FIRST:
            out = w["output.weight"] @ torch.cat([h, read]) + w["output.bias"]
            total = total + f.binary_cross_entropy_with_logits(out, y[t - FIRST], reduction="sum")
    return total


def write(folder, name, inputs, outputs, hidden, feed_forward, rows, width, heads, shift):
    torch.manual_seed(len(name))
    gates = hidden * (1 if feed_forward else 4)
    address_width = width + 3 + 2 * shift + 1
    heads_width = heads * (2 * address_width + 2 * width)
    shapes = {
        "controller.weight_ih": (gates, inputs + heads * width),
        "controller.weight_hh": (gates, hidden),
        "controller.bias": (gates,),
        "heads.weight": (heads_width, hidden),
        "heads.bias": (heads_width,),
        "output.weight": (outputs, hidden + heads * width),
        "output.bias": (outputs,),
    }
    if feed_forward:
        del shapes["controller.weight_hh"]
    w = {k: (0.7 * torch.randn(s, dtype=torch.float64)).requires_grad_() for k, s in shapes.items()}
    x = torch.randint(2, (T, inputs)).double()
    y = torch.randint(2, (T - FIRST, outputs)).double()
    total = loss(w, x, y, outputs, hidden, feed_forward, rows, width, heads, shift)
    total.backward()
    flat = lambda values: {k: v.flatten().tolist() for k, v in values.items()}
    (folder / f"{name}.json").write_text(
        json.dumps(
            dict(inputs=inputs, outputs=outputs, hidden=hidden, feed_forward=feed_forward,
                 rows=rows, width=width, heads=heads, shift=shift, first=FIRST,
                 x=x.flatten().tolist(), y=y.flatten().tolist(), loss=total.item(),
                 tensors=flat({k: v.detach() for k, v in w.items()}),
                 gradients=flat({k: v.grad for k, v in w.items()}))
        )
        + "\n"
    )


folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
for name, case in CASES.items():
    write(folder, name, *case)
