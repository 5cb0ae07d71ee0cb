#!/usr/bin/env python3
"""Writes the traces that labellers are held against: labeller-<case>.json.

    python3 labeller.py [folder]      (the committed files were written with torch 2.15.0 on a CPU)

A case is embedding -> torch.nn.{RNN,GRU,LSTM} over a packed sequence -> pooling -> linear output
layer. Each layer is a torch.nn module of its own, so that dropout can have Rondo's masks (see
dropout.py); without dropout the script checks that one module of all layers gives the same outputs.

    cell, layers, T, B, V, E, H, C, bidirectional, pool, dropout, dropout_input, seed, step, lanes
    locked: all steps of a lane have the same dropout mask
    widths: the second direction is HB wide (hidden_backward)
    deep: with deep.py's deep input, transitions and output
    norm: torch.nn.LayerNorm follows each layer's dropout; skip: and before it, from the second
        layer on, the layer's input is added
    ids [T][B], lengths [B], targets ([B], or [T*B] with -1 after an example)
    output [T*B*W] the last layer's output after dropout, zero after an example
    logits, loss (summed over the targets), weights, and gradients of the loss
"""
import json
import pathlib
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import deep

T, B, V, H, C, HB = 5, 4, 7, 5, 3, 3
SEED, STEP, LANES, LENGTHS = 9, 2, [4, 0, 11, 5], [5, 2, 1, 4]
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
# name: cell, layers, bidirectional, E, pool, dropout, and any of label smoothing, locked, norm,
# skip, widths and deep
CASES = {
    "lstm-last": ("lstm", 2, True, 4, "last", 0),
    "gru-mean": ("gru", 2, True, 4, "mean", 0),
    "rnn-max": ("rnn", 2, True, 4, "max", 0),
    "lstm-none": ("lstm", 2, True, 4, "none", 0),
    "gru-wide": ("gru", 1, True, 13, "none", 0),
    "rnn-one-hot": ("rnn", 2, True, 0, "last", 0),
    "lstm-forward": ("lstm", 1, False, 0, "last", 0),
    "gru-forward": ("gru", 2, False, 4, "max", 0),
    "gru-dropout": ("gru", 2, True, 4, "none", 0.3),
    "lstm-dropout": ("lstm", 2, True, 4, "mean", 0.3),
    "lstm-locked": ("lstm", 2, True, 4, "none", 0.3, "locked"),
    "lstm-norm": ("lstm", 2, True, 4, "none", 0.3, "norm", "skip"),
    "gru-norm": ("gru", 3, True, 4, "mean", 0, "norm", "skip"),
    "rnn-skip": ("rnn", 2, False, 0, "last", 0, "skip"),
    "gru-mean-smooth": ("gru", 2, True, 4, "mean", 0, 0.2),
    "gru-deep": ("gru", 2, True, 4, "mean", 0.3, "deep"),
    "lstm-deep": ("lstm", 2, True, 4, "none", 0, "deep", "norm", "skip"),
    "gru-widths": ("gru", 2, True, 4, "last", 0.3, "widths", "norm"),
}
GOLDEN, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB & BITS
    return z ^ z >> 31


def key(layer, lane):  # layer -1: the embedding
    k = SEED
    for x in STEP, layer, lane:
        k = mix(k + (x + 1) * GOLDEN & BITS)
    return k


def keep(key, index, p):
    return (mix(key + (index + 1) * GOLDEN & BITS) >> 40) / 2**24 >= torch.tensor(p).item()


def drop(x, p, layer, locked):
    if p == 0:
        return x
    width = x.shape[2]
    kept = [[[keep(key(layer, lane), (0 if locked else t * width) + h, p) for h in range(width)]
             for lane in LANES] for t in range(T)]
    return x * torch.tensor(kept).double() / (1 - p)


def packed(module, x):
    """The padded outputs [T, B, W]."""
    y, _ = module(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    return pad_packed_sequence(y, total_length=T)[0]


class TwoWidths(nn.Module):
    def __init__(self, cell, inputs):
        super().__init__()
        self.ahead, self.back = cell(inputs, H), cell(inputs, HB)

    def forward(self, x):
        return torch.cat([self.ahead(x)[0], self.turn(self.back(self.turn(x))[0])], 2)

    def turn(self, x):
        rows = [torch.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(LENGTHS)]
        return torch.stack(rows, 1)


class Labeller(nn.Module):
    def __init__(self, cell, layers, bidirectional, embed, pool, dropout, *kinds):
        super().__init__()
        self.locked, self.skip, self.deep = "locked" in kinds, "skip" in kinds, "deep" in kinds
        self.case = cell, layers, bidirectional, embed, pool, dropout
        self.widths = "widths" in kinds
        width = H + HB if self.widths else H * (1 + bidirectional)
        self.embedding = nn.Embedding(V, embed) if embed else None
        first = H if self.deep else embed or V
        self.rnn = nn.ModuleList(CELLS[cell](width if l else first, H,
                                             bidirectional=bidirectional) for l in range(layers))
        if self.widths:
            self.rnn = nn.ModuleList(TwoWidths(CELLS[cell], width if l else embed)
                                     for l in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers * ("norm" in kinds)))
        for p in self.norm.parameters():
            nn.init.normal_(p)
        self.output = nn.Linear(H if self.deep else width, C)
        if self.deep:
            self.deep_input = deep.tanh_layers(deep.INPUT, embed, H)
            self.transition = deep.transitions(layers, 1 + bidirectional, H)
            self.deep_output = deep.tanh_layers(deep.OUTPUT, width, H)

    def forward(self, ids):
        cell, layers, bidirectional, embed, pool, dropout = self.case
        x = self.embedding(ids) if embed else nn.functional.one_hot(ids, V).double()
        x = first = drop(x, dropout if embed else 0, -1, self.locked)
        x = deep.through(self.deep_input, x) if self.deep else x
        for l, layer in enumerate(self.rnn):
            h = (deep.packed(layer, self.transition[l], x, LENGTHS) if self.deep
                 else layer(x) if self.widths else packed(layer, x))
            h = drop(h, dropout, l, self.locked)
            x = h + x if self.skip and l else h
            x = self.norm[l](x) if self.norm else x
        if dropout == 0 and not (self.norm or self.skip or self.deep or self.widths):
            self.check(first, x)
        steps = torch.arange(T)[:, None] < torch.tensor(LENGTHS)  # [T, B]
        if pool == "last":
            pooled = torch.stack([torch.cat([x[n - 1, b, :H], x[0, b, H:]])  # without more, h_n
                                  for b, n in enumerate(LENGTHS)])
        elif pool == "mean":
            pooled = (x * steps[:, :, None]).sum(0) / torch.tensor(LENGTHS)[:, None]
        elif pool == "max":
            pooled = x.masked_fill(~steps[:, :, None], -torch.inf).amax(0)
        else:
            pooled = x.reshape(T * B, -1)
        pooled = deep.through(self.deep_output, pooled) if self.deep else pooled
        return x.masked_fill(~steps[:, :, None], 0), self.output(pooled)

    def check(self, x, y):
        cell, layers, bidirectional, embed, *_ = self.case
        stack = CELLS[cell](embed or V, H, num_layers=layers, bidirectional=bidirectional).double()
        stack.load_state_dict({n.removeprefix("rnn."): p for n, p in self.named()
                               if n.startswith("rnn.")})
        assert torch.allclose(packed(stack, x), y, rtol=0, atol=1e-12)

    def named(self):
        """The parameters by the names that torch.nn.LSTM(num_layers=...) gives them."""
        for name, p in self.named_parameters():
            side = "_reverse" * (".back." in name)
            yield deep.named(name.replace(".ahead.", ".").replace(".back.", ".")) + side, p


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, case):
    cell, layers, bidirectional, embed, pool, dropout = case[:6]
    torch.manual_seed(number)
    model = Labeller(*case).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.float().double())  # exact in both
    ids = torch.randint(0, V, (T, B))
    targets = torch.randint(0, C, (T, B) if pool == "none" else (B,))
    if pool == "none":
        targets[torch.arange(T)[:, None] >= torch.tensor(LENGTHS)] = -1
    output, logits = model(ids)
    smoothing = sum(x for x in case[6:] if isinstance(x, float))
    plain, loss = (
        nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-1, reduction="sum",
                                    label_smoothing=e) for e in (0.0, smoothing))
    loss.backward()
    more = {"smoothing": smoothing, "plain": float(f"{plain.item():.12g}")} if smoothing else {}
    return {
        "torch": torch.__version__, "cell": cell, "layers": layers, "T": T, "B": B, "V": V,
        "E": embed, "H": H, "C": C, "bidirectional": bidirectional, "pool": pool,
        "dropout": dropout, "dropout_input": dropout if embed else 0,
        **{kind: True for kind in case[6:] if isinstance(kind, str)}, **more,
        **({"hidden_backward": HB} if model.widths else {}),
        "seed": SEED, "step": STEP,
        "lanes": LANES, "ids": ids.tolist(), "lengths": LENGTHS,
        "targets": targets.reshape(-1).tolist(), "output": rounded(output),
        "logits": rounded(logits), "loss": float(f"{loss.item():.12g}"),
        "weights": tensors(model.named()),
        "gradients": tensors((n, p.grad) for n, p in model.named()),
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, (name, case) in enumerate(CASES.items()):
        text = json.dumps(trace(number, case), separators=(",", ":"))
        (folder / f"labeller-{name}.json").write_text(text + "\n")


main()
