#!/usr/bin/env python3
"""Writes the traces that models with dropout are held against: dropout-<cell>-<layers>.json.

    python3 dropout.py [folder]      (the committed files were written with torch 2.15.0 on a CPU)

A case is embedding -> dropout -> torch.nn.{RNN,GRU,LSTM}, with dropout after each layer -> linear
output layer. PyTorch draws its masks from its own generator. Here the masks are given: they are
Rondo's (keep and key below repeat compute.DropoutKeep and model.DropoutKey), scaled by 1/(1-p). So
each layer is a torch.nn module of its own.

The file has the fields of compute/testdata/trace.py, and

    embed, dropout, dropout_input, seed
    tied            the output layer has the embedding's weights, behind a projection
    locked          all steps of a lane have the same mask
    norm            torch.nn.LayerNorm follows each layer's dropout
    skip            and before it, from the second layer on, the layer's input is added
    last            the last layer has a dropout of its own, dropout_output
    words           dropout_words of the embedding's rows, the same ones for all lanes
    drops           weight_drop of the elements of weight_hh, the same ones in all steps
    penalties       activation_l2 and temporal_l2 are added to what is differentiated, not to losses
    lanes           [B] number of each lane, for its masks
    output          [T*B*H] the last layer's output after dropout, before any update

Update i of sgd is step i, so that each has masks of its own.
"""
import json
import pathlib
import sys

import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).parents[2] / "compute" / "testdata"))
import cells

T, B, V, E, H = 5, 3, 7, 4, 6
STEPS, LR, SEED, LANES = 6, 0.5, 9, [4, 0, 11]
DROPOUT, DROPOUT_INPUT, DROPOUT_OUTPUT, DROPOUT_WORDS, WEIGHT_DROP = 0.3, 0.2, 0.5, 0.4, 0.35
ACTIVATION_L2, TEMPORAL_L2 = 2, 1.5  # large enough to be seen in every gradient
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM,
         "lstm-peephole": lambda *shape: cells.Layers("lstm-peephole", *shape)}
CASES = [("rnn", 1, False), ("gru", 2, False), ("gru", 1, True), ("lstm", 1, False),
         ("lstm", 2, False), ("lstm-peephole", 2, False), ("gru", 2, False, "locked"),
         ("lstm", 2, False, "norm"), ("gru", 3, False, "norm", "skip"),
         ("lstm", 2, False, "words", "drops"), ("gru", 1, True, "words", "drops", "penalties"),
         ("lstm", 2, False, "locked", "last", "penalties"),
         ("rnn", 2, False, "norm", "skip", "drops", "penalties")]
SETTINGS = [("last", ("dropout_output", DROPOUT_OUTPUT)),
            ("words", ("dropout_words", DROPOUT_WORDS)), ("drops", ("weight_drop", WEIGHT_DROP)),
            ("penalties", ("activation_l2", ACTIVATION_L2), ("temporal_l2", TEMPORAL_L2))]
GOLDEN, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB & BITS
    return z ^ z >> 31


def key(step, layer, lane):  # layer -1: the embedding
    k = SEED
    for x in step, layer, lane:
        k = mix(k + (x + 1) * GOLDEN & BITS)
    return k


def keep(key, index, p):
    return (mix(key + (index + 1) * GOLDEN & BITS) >> 40) / 2**24 >= torch.tensor(p).item()


def drop(x, p, step, layer, locked):
    _, _, width = x.shape
    kept = [[[keep(key(step, layer, lane), (0 if locked else t * width) + h, p)
              for h in range(width)] for lane in LANES] for t in range(T)]
    return x * torch.tensor(kept).double() / (1 - p)


def drop_words(table, step):  # the rows of an embedding
    kept = [[keep(key(step, -2, word), 0, DROPOUT_WORDS)] for word in range(V)]
    return table * torch.tensor(kept).double() / (1 - DROPOUT_WORDS)


def run(layer, x, step, number, weights):
    """A layer, with a mask of its weight_hh if weights."""
    if not weights:
        return layer(x)[0]
    w = layer.weight_hh_l0
    k = key(step, number, -1)
    kept = [keep(k, i, WEIGHT_DROP) for i in range(w.numel())]
    masked = w * torch.tensor(kept).double().reshape(w.shape) / (1 - WEIGHT_DROP)
    return torch.func.functional_call(layer, {"weight_hh_l0": masked}, (x,))[0]


class LanguageModel(nn.Module):
    def __init__(self, cell, layers, tied, *kinds):
        super().__init__()
        self.locked, self.skip, self.kinds = "locked" in kinds, "skip" in kinds, kinds
        self.embedding = nn.Embedding(V, E)
        self.rnn = nn.ModuleList(CELLS[cell](H if l else E, H) for l in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(H) for _ in range(layers if "norm" in kinds else 0))
        for p in self.norm.parameters():
            nn.init.normal_(p)
        self.projection = nn.Linear(H, E, bias=False) if tied else None
        self.output = nn.Linear(E if tied else H, V)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, ids, targets, step):
        table = self.embedding.weight
        table = drop_words(table, step) if "words" in self.kinds else table
        x = drop(nn.functional.embedding(ids, table), DROPOUT_INPUT, step, -1, self.locked)
        penalty = 0
        for l, layer in enumerate(self.rnn):
            y, last = run(layer, x, step, l, "drops" in self.kinds), l == len(self.rnn) - 1
            p = DROPOUT_OUTPUT if last and "last" in self.kinds else DROPOUT
            h = drop(y, p, step, l, self.locked)
            if last and "penalties" in self.kinds:
                penalty = (ACTIVATION_L2 * h.square().mean()
                           + TEMPORAL_L2 * (y[1:] - y[:-1]).square().mean())
            x = h + x if self.skip and l else h
            x = self.norm[l](x) if self.norm else x
        logits = self.output(self.projection(x) if self.projection else x)
        loss = nn.functional.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))
        return x, loss, loss + penalty

    def named(self):
        """The parameters by the names that torch.nn.LSTM(num_layers=...) gives them."""
        for name, p in self.named_parameters():
            parts = name.split(".")
            if parts[0] == "rnn":
                name = "rnn." + parts[2].removesuffix("0") + parts[1]
            yield name, p


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, cell, layers, tied, *kinds):
    torch.manual_seed(number)
    model = LanguageModel(cell, layers, tied, *kinds)  # float32 values, then widened: exact in both
    ids, targets = (torch.randint(0, V, (T, B)) for _ in range(2))
    model = model.double()
    weights = tensors(model.named())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, gradients = [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        y, loss, whole = model(ids, targets, step)
        whole.backward()
        if gradients is None:
            gradients, output = tensors((n, p.grad) for n, p in model.named()), rounded(y)
        losses.append(float(f"{loss.item():.12g}"))
        optimizer.step()
    return {
        "torch": torch.__version__,
        "cell": cell, "layers": layers, "T": T, "B": B, "V": V, "H": H, "embed": E, "tied": tied,
        "dropout": DROPOUT, "dropout_input": DROPOUT_INPUT, "seed": SEED,
        **{kind: True for kind in kinds},
        **{name: value for kind, *values in SETTINGS if kind in kinds for name, value in values},
        "lanes": LANES,
        "ids": ids.tolist(), "targets": targets.tolist(),
        "weights": weights, "loss": losses[0], "output": output, "gradients": gradients,
        "sgd": {"lr": LR, "losses": losses, "weights_after": tensors(model.named())},
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, case in enumerate(CASES):
        text = json.dumps(trace(number, *case), separators=(",", ":"))
        kinds = "".join("-" + kind for kind in ("tied",) * case[2] + case[3:])
        (folder / f"dropout-{case[0]}-{case[1]}{kinds}.json").write_text(text + "\n")


main()
