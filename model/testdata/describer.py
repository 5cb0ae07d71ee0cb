#!/usr/bin/env python3
"""Writes the traces of translators whose sources are vectors: describer-<case>.json.

    python3 describer.py [folder]    (the committed files were written with torch 2.15.0 on a CPU)

The members are those of translator.py's traces, and vectors [source_vocab][F]; source [1][B] has
rows of these. context is concat, state or input.
"""
import json
import pathlib
import sys

import torch
from torch import nn

T, B, ROWS, V, E, H, F = 4, 4, 6, 6, 4, 5, 3
TARGET_LENGTHS = [3, 4, 1, 2]
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CASES = {  # name: cell, layers, context
    "gru-input": ("gru", 2, "input"),
    "lstm-state": ("lstm", 2, "state"),
    "lstm-both": ("lstm", 1, "concat"),
    "rnn-both": ("rnn", 2, "concat"),
}


class Describer(nn.Module):
    def __init__(self, cell, layers, context):
        super().__init__()
        self.context, self.layers = context, layers
        self.vector = nn.Linear(F, H * (1 if context == "input" else layers), bias=False)
        self.decoder = nn.Module()
        self.decoder.embedding = nn.Embedding(V, E)
        self.decoder.rnn = CELLS[cell](E + H * (context != "state"), H, layers)
        self.output = nn.Linear(H, V)

    def forward(self, vectors, inputs):
        a = self.vector(vectors).view(B, -1, H).transpose(0, 1)  # [L or 1, B, H]
        first = torch.zeros(self.layers, B, H).double() if self.context == "input" else a
        x = self.decoder.embedding(inputs)
        if self.context != "state":
            x = torch.cat([x, a[-1].expand(T, B, H)], 2)
        if isinstance(self.decoder.rnn, nn.LSTM):
            first = (first.contiguous(), torch.zeros_like(first))
        else:
            first = first.contiguous()
        return self.output(self.decoder.rnn(x, first)[0])


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, case):
    cell, layers, context = case
    torch.manual_seed(number)
    model = Describer(*case).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.float().double())  # exact in both
    vectors = torch.randn(ROWS, F).float().double()
    source, tokens = torch.randint(0, ROWS, (1, B)), torch.randint(0, V, (T + 1, B))
    inputs, targets = tokens[:-1], tokens[1:].clone()
    targets[torch.arange(T)[:, None] >= torch.tensor(TARGET_LENGTHS)] = -1
    logits = model(vectors[source[0]], inputs).reshape(T * B, V)
    loss = nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-1,
                                       reduction="sum")
    loss.backward()
    return {
        "torch": torch.__version__, "cell": cell, "layers": layers, "S": 1, "T": T, "B": B,
        "source_vocab": ROWS, "V": V, "E": E, "H": H, "context": context, "attention": "none",
        "vectors": [rounded(row) for row in vectors], "source": source.tolist(),
        "lengths": [1] * B, "inputs": inputs.reshape(-1).tolist(),
        "targets": targets.reshape(-1).tolist(),
        "log_probabilities": rounded(logits.log_softmax(1)), "loss": float(f"{loss.item():.12g}"),
        "weights": tensors(model.named_parameters()),
        "gradients": tensors((n, p.grad) for n, p in model.named_parameters()),
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, (name, case) in enumerate(CASES.items()):
        text = json.dumps(trace(number, case), separators=(",", ":"))
        (folder / f"describer-{name}.json").write_text(text + "\n")


main()
