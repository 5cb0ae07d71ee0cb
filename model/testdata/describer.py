#!/usr/bin/env python3
"""Writes the traces of translators whose sources are vectors: describer-<case>.json.

    python3 describer.py [folder]    (the committed files were written with torch 2.15.0 on a CPU)

The members are those of translator.py's traces, and vectors [source_vocab][F]; source [1][B] has
rows of these. context is concat, state or input. ends is stop or length, if the last target of each
lane is no token but its end, which takes the place of token END: see model.Ends. 0 stands for the
log probability of what is impossible. deep: with deep.py's deep input and output.
"""
import json
import pathlib
import sys

import torch
from torch import nn

import deep

T, B, ROWS, V, E, H, F = 4, 4, 6, 6, 4, 5, 3
TARGET_LENGTHS, END = [3, 4, 1, 2], 1
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CASES = {  # name: cell, layers, context, and ends and deep
    "gru-input": ("gru", 2, "input"),
    "lstm-state": ("lstm", 2, "state"),
    "lstm-both": ("lstm", 1, "concat"),
    "rnn-both": ("rnn", 2, "concat"),
    "gru-stop": ("gru", 2, "concat", "stop"),
    "lstm-length": ("lstm", 1, "state", "length"),
    "lstm-deep": ("lstm", 2, "input", "eos", "deep"),
    "gru-deep-stop": ("gru", 2, "state", "stop", "deep"),
    "gru-deep-length": ("gru", 1, "concat", "length", "deep"),
}


class Describer(nn.Module):
    def __init__(self, cell, layers, context, ends="eos", *deeper):
        super().__init__()
        self.context, self.layers, self.ends = context, layers, ends
        self.vector = nn.Linear(F, H * (1 if context == "input" else layers), bias=False)
        self.decoder = nn.Module()
        self.decoder.embedding = nn.Embedding(V, E)
        self.decoder.deep_input = deep.tanh_layers(deep.INPUT * len(deeper), E, H)
        self.deep_output = deep.tanh_layers(deep.OUTPUT * len(deeper), H, H)
        self.decoder.rnn = CELLS[cell]((H if deeper else E) + H * (context != "state"), H, layers)
        self.output = nn.Linear(H, V)
        if ends == "stop":
            self.stop = nn.Linear(H, 2)
        if ends == "length":
            self.length, self.remaining = nn.Linear(F, T), nn.Embedding(T, E)

    def forward(self, vectors, inputs, left=None):
        """The decoder's outputs. left [T][B] are the tokens before the end."""
        a = self.vector(vectors).view(B, -1, H).transpose(0, 1)  # [L or 1, B, H]
        first = torch.zeros(self.layers, B, H).double() if self.context == "input" else a
        x = self.decoder.embedding(inputs)
        x = x + self.remaining(left) if self.ends == "length" else x
        x = deep.through(self.decoder.deep_input, x)
        if self.context != "state":
            x = torch.cat([x, a[-1].expand(T, B, H)], 2)
        if isinstance(self.decoder.rnn, nn.LSTM):
            first = (first.contiguous(), torch.zeros_like(first))
        else:
            first = first.contiguous()
        return deep.through(self.deep_output, self.decoder.rnn(x, first)[0])

    def loss(self, vectors, inputs, targets):
        steps, n = torch.arange(T)[:, None], torch.tensor(TARGET_LENGTHS)
        y = self(vectors, inputs, (n - 1 - steps).clamp(min=0))
        more = 0
        if self.ends != "eos":
            targets = targets.masked_fill(steps == n - 1, -1)
        if self.ends == "stop":
            choices = (steps == n - 1).long().masked_fill(steps >= n, -1)
            more = summed(self.stop(y).reshape(-1, 2), choices.reshape(-1))
        if self.ends == "length":
            more = summed(self.length(vectors), n - 1)
        return summed(self.output(y).reshape(-1, V), targets.reshape(-1)) + more

    def log_probabilities(self, vectors, inputs):
        steps, left = torch.arange(T)[:, None], None
        if self.ends == "length":
            length, n = self.length(vectors).log_softmax(1).max(1)
            left = (n - steps).clamp(min=0)
        y = self(vectors, inputs, left)
        log = self.output(y).log_softmax(2)
        if self.ends == "stop":
            choices = self.stop(y).log_softmax(2)
            log = log + choices[:, :, :1]
            log[:, :, END] = choices[:, :, 1]
        if self.ends == "length":
            log[0] += length[:, None]
            log = log.masked_fill((left == 0)[:, :, None], 0)
            log[:, :, END] = torch.where((steps == 0) & (left == 0), length, 0)
        return log


def summed(logits, targets):
    return nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, case):
    cell, layers, context, *more = case
    torch.manual_seed(number)
    model = Describer(*case).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.float().double())  # exact in both
    vectors = torch.randn(ROWS, F).float().double()
    source, tokens = torch.randint(0, ROWS, (1, B)), torch.randint(0, V, (T + 1, B))
    inputs, targets = tokens[:-1], tokens[1:].clone()
    targets[torch.arange(T)[:, None] >= torch.tensor(TARGET_LENGTHS)] = -1
    loss = model.loss(vectors[source[0]], inputs, targets)
    loss.backward()
    with torch.no_grad():
        log_probabilities = model.log_probabilities(vectors[source[0]], inputs)
    return {
        "torch": torch.__version__, "cell": cell, "layers": layers, "S": 1, "T": T, "B": B,
        "source_vocab": ROWS, "V": V, "E": E, "H": H, "context": context, "attention": "none",
        "vectors": [rounded(row) for row in vectors], "source": source.tolist(),
        "lengths": [1] * B, "inputs": inputs.reshape(-1).tolist(),
        "targets": targets.reshape(-1).tolist(),
        "log_probabilities": rounded(log_probabilities), "loss": float(f"{loss.item():.12g}"),
        "weights": tensors(model.named_parameters()),
        "gradients": tensors((n, p.grad) for n, p in model.named_parameters()),
    } | ({"ends": more[0]} if more else {}) | ({"deep": True} if more[1:] else {})


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, (name, case) in enumerate(CASES.items()):
        text = json.dumps(trace(number, case), separators=(",", ":"))
        (folder / f"describer-{name}.json").write_text(text + "\n")


main()
