"""Deep inputs, transitions and outputs (Pascanu et al. 2014, arXiv:1312.6026) around torch.nn's
recurrent layers, for the scripts of this folder."""
import torch
from torch import nn

INPUT, TRANSITION, OUTPUT = 2, 2, 1  # layers of each


def tanh_layers(count, inputs, width):
    return nn.ModuleList(nn.Linear(width if i else inputs, width) for i in range(count))


def through(layers, x):
    for layer in layers:
        x = layer(x).tanh()
    return x


def transitions(layers, sides, width):
    """The perceptrons of each layer's directions, which named() names."""
    return nn.ModuleList(nn.ModuleList(tanh_layers(TRANSITION, width, width) for _ in range(sides))
                         for _ in range(layers))


def run(layer, transition, x, state=None, side=0):
    """The outputs of one direction of a layer whose hidden state goes through tanh layers at each
    step, and the last state."""
    cell = type(layer)(x.shape[2], layer.hidden_size).to(x.dtype)
    weights = {n.removesuffix("_reverse"): p for n, p in layer.named_parameters()
               if n.endswith("_reverse") == (side == 1)}
    outputs = []
    for step in x:
        _, state = torch.func.functional_call(cell, weights, (step[None], state))
        h = through(transition[side], state[0] if isinstance(state, tuple) else state)
        state = (h, state[1]) if isinstance(state, tuple) else h
        outputs.append(h[0])
    return torch.stack(outputs), state


def packed(layer, transition, x, lengths):
    """The padded outputs of a layer of one or two directions, [T, B, W]."""
    sides = []
    for side in range(1 + layer.bidirectional):
        rows = []
        for b, n in enumerate(lengths):
            given = x[:n, b:b + 1]
            y, _ = run(layer, transition, given.flip(0) if side else given, side=side)
            y = y.flip(0) if side else y
            rows.append(nn.functional.pad(y, (0, 0, 0, 0, 0, x.shape[0] - n)))
        sides.append(torch.cat(rows, 1))
    return torch.cat(sides, 2)


def named(name):
    """The name of a parameter rnn.LAYER.* or transition.LAYER.SIDE.NUMBER.* of a stack."""
    parts = name.split(".")
    if parts[0] == "rnn" and len(parts) == 3:
        return "rnn." + parts[2].replace("_l0", "_l" + parts[1])
    if parts[0] == "transition":
        return f"rnn.transition.{parts[3]}.{parts[4]}_l{parts[1]}" + "_reverse" * int(parts[2])
    return name
