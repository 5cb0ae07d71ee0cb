#!/usr/bin/env python3
"""Writes the traces that translators are held against: translator-<case>.json.

    python3 translator.py [folder]    (the committed files were written with torch 2.15.0 on a CPU)

A case is an encoder, torch.nn.{RNN,GRU,LSTM} over a packed source, and a decoder that reads the
target's tokens, each predicted from those before it.

    cell, layers, S, T, B, source_vocab, V, E, H, bidirectional, context, attention, smoothing
    norm, skip: torch.nn.LayerNorm follows each layer, behind the sum with its input from the
        second layer on
    deep: with deep.py's deep input, behind both embeddings, and deep output
    widths: the encoder's second direction is HB wide (hidden_backward), and bridge.weight brings its
        final states to the width H of the first
    source [S][B], lengths [B], inputs [T*B], targets [T*B] with -1 after a target
    log_probabilities [T*B*V], loss (summed over the targets), weights, and gradients of the loss
    plain: the loss without label smoothing; feedback: both, unless it is given
"""
import json
import pathlib
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import deep

S, T, B, SOURCE, V, E, H, HB = 5, 4, 4, 7, 6, 4, 5, 3
LENGTHS, TARGET_LENGTHS = [5, 2, 1, 4], [3, 4, 1, 2]
CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
# name: cell, layers, bidirectional, context, attention, and any of label smoothing, norm, skip,
# feedback, deep and widths
CASES = {
    "gru-concat": ("gru", 2, True, "concat", "none"),
    "gru-state": ("gru", 2, True, "state", "none"),
    "gru-forward": ("gru", 1, False, "concat", "none"),
    "rnn-concat": ("rnn", 2, False, "concat", "none"),
    "rnn-state": ("rnn", 1, True, "state", "none"),
    "lstm-concat": ("lstm", 2, True, "concat", "none"),
    "lstm-state": ("lstm", 2, False, "state", "none"),
    "gru-luong": ("gru", 2, True, "state", "luong"),
    "gru-luong-concat": ("gru", 1, False, "concat", "luong"),
    "lstm-luong": ("lstm", 2, True, "concat", "luong"),
    "gru-bahdanau": ("gru", 2, True, "state", "bahdanau"),
    "gru-bahdanau-concat": ("gru", 1, False, "concat", "bahdanau"),
    "lstm-bahdanau": ("lstm", 2, True, "concat", "bahdanau"),
    "gru-scaled": ("gru", 1, True, "state", "scaled"),
    "lstm-scaled-smooth": ("lstm", 1, False, "concat", "scaled", 0.1),
    "gru-smooth": ("gru", 1, False, "state", "none", 0.3),
    "lstm-output": ("lstm", 2, True, "concat", "luong", "output"),
    "gru-output": ("gru", 1, False, "concat", "none", "output"),
    "gru-hidden": ("gru", 2, False, "state", "bahdanau", "hidden"),
    "lstm-norm": ("lstm", 2, True, "concat", "luong", "norm", "skip"),
    "gru-skip": ("gru", 3, False, "state", "none", "skip"),
    "gru-bahdanau-norm": ("gru", 3, True, "concat", "bahdanau", "norm", "skip"),
    "lstm-bahdanau-skip": ("lstm", 2, False, "state", "bahdanau", "skip"),
    "lstm-deep": ("lstm", 1, False, "state", "none", "deep"),
    "gru-deep-concat": ("gru", 2, True, "concat", "none", "deep", "skip"),
    "gru-deep-luong": ("gru", 2, True, "concat", "luong", "deep"),
    "gru-deep-bahdanau": ("gru", 2, True, "concat", "bahdanau", "deep", "norm"),
    "rnn-deep-bahdanau": ("rnn", 1, True, "state", "bahdanau", "deep"),
    "lstm-widths": ("lstm", 2, True, "concat", "none", "widths"),
    "gru-widths-luong": ("gru", 2, True, "state", "luong", "widths", "norm"),
    "gru-widths-bahdanau": ("gru", 1, True, "concat", "bahdanau", "widths"),
}


class TwoWidths(nn.Module):
    """Layers of two directions, over padded batches, with the names of a torch.nn module."""

    def __init__(self, kind, width, layers):
        super().__init__()
        self.num_layers, self.bidirectional, self.kind = layers, True, kind
        for k in range(layers):
            for size, side in (H, ""), (HB, "_reverse"):
                one = kind(H + HB if k else width, size)
                for name, p in one.named_parameters():
                    self.register_parameter(name.replace("_l0", f"_l{k}") + side, p)

    def layer(self, k, x):
        """The outputs of layer k, zeros behind each row's end, and both final states."""
        outputs, finals = [], []
        for size, side in (H, ""), (HB, "_reverse"):
            one = self.kind(x.shape[2], size).double()
            weights = {n: getattr(self, n.replace("_l0", f"_l{k}") + side)
                       for n, _ in one.named_parameters()}
            given = turned(x) if side else x
            y, last = torch.func.functional_call(one, weights, (pack_padded_sequence(
                given, LENGTHS, enforce_sorted=False),))
            y, _ = pad_packed_sequence(y, total_length=S)
            outputs.append(turned(y) if side else y)
            finals.append(last)
        return torch.cat(outputs, 2), finals


def turned(x):
    return torch.stack([torch.cat([x[:n, b].flip(0), x[n:, b]])
                        for b, n in enumerate(LENGTHS)], 1)


class Part(nn.Module):
    def __init__(self, cell, vocab, width, layers, kinds, bidirectional=False):
        super().__init__()
        self.embedding = nn.Embedding(vocab, E)
        if "deep" in kinds:
            self.deep_input = deep.tanh_layers(deep.INPUT, E, H)
        self.kinds = {"norm", "skip"} & set(kinds)
        self.rnn = CELLS[cell](width, H, layers, bidirectional=bidirectional)
        self.bridge = None
        if bidirectional and "widths" in kinds:
            self.rnn = TwoWidths(CELLS[cell], width, layers)
            states = layers * (1 + (cell == "lstm"))
            self.bridge = nn.Linear(HB, states * H, bias=False)
        sizes = [outputs(kinds, bidirectional)] * layers * ("norm" in kinds)
        self.norm = nn.ModuleList(map(nn.LayerNorm, sizes))
        for p in self.norm.parameters():
            nn.init.normal_(p)

    def embed(self, tokens):
        return deep.through(getattr(self, "deep_input", []), self.embedding(tokens))

    def run(self, x, state=None):
        """The outputs, and the final states of all layers."""
        if self.bridge:
            return self.two_widths(x)
        return self.by_layers(x, state) if self.kinds else self.rnn(x, state)

    def two_widths(self, x):
        x, sizes = pad_packed_sequence(x, total_length=S)
        parts, firsts = iter(self.bridge.weight.split(H)), []
        for k in range(self.rnn.num_layers):
            x, (ahead, back) = self.rnn.layer(k, x)
            x = self.norm[k](x) if self.norm else x
            if isinstance(ahead, tuple):
                firsts.append(tuple(a + b @ next(parts).T for a, b in zip(ahead, back)))
            else:
                firsts.append(ahead + back @ next(parts).T)
        if isinstance(ahead, tuple):
            state = tuple(torch.cat(s) for s in zip(*firsts))
        else:
            state = torch.cat(firsts)
        return pack_padded_sequence(x, sizes, enforce_sorted=False), state

    def by_layers(self, x, state):
        rnn, finals, sizes = self.rnn, [], None
        if not torch.is_tensor(x):
            x, sizes = pad_packed_sequence(x, total_length=S)
        for k in range(rnn.num_layers):
            layer = type(rnn)(x.shape[2], H, bidirectional=rnn.bidirectional).double()
            given = x if sizes is None else pack_padded_sequence(x, sizes, enforce_sorted=False)
            before = state
            if state is not None:
                before = (tuple(s[k:k + 1] for s in state) if isinstance(state, tuple)
                          else state[k:k + 1])
            h, last = torch.func.functional_call(
                layer, {n.replace(f"_l{k}", "_l0"): p for n, p in rnn.named_parameters()
                        if n.removesuffix("_reverse").endswith(f"_l{k}")}, (given, before))
            h = h if sizes is None else pad_packed_sequence(h, total_length=S)[0]
            x = h + x if "skip" in self.kinds and k else h
            x = self.norm[k](x) if self.norm else x
            finals.append(last)
        if isinstance(finals[0], tuple):
            state = tuple(torch.cat(s) for s in zip(*finals))
        else:
            state = torch.cat(finals)
        if sizes is not None:
            x = pack_padded_sequence(x, sizes, enforce_sorted=False)
        return x, state


def outputs(kinds, bidirectional):
    """The width of an encoder's outputs."""
    return H + (HB if "widths" in kinds else H) * bidirectional


class Translator(nn.Module):
    def __init__(self, cell, layers, bidirectional, context, attention, *kinds):
        super().__init__()
        self.context, self.kind, self.sides = context, attention, 1 + bidirectional
        self.bridged, width = "widths" in kinds, outputs(kinds, bidirectional)
        self.feedback = ([k for k in ("output", "hidden") if k in kinds] + ["both"])[0]
        embedded = H if "deep" in kinds else E
        self.encoder = Part(cell, SOURCE, embedded, layers, kinds, bidirectional)
        wide = embedded + H * (context == "concat") + width * (attention == "bahdanau")
        self.decoder = Part(cell, V, wide, layers, kinds)
        if attention in ("luong", "scaled"):
            self.attention = nn.Module()
            self.attention.keys = nn.Linear(width, H, bias=False)
            self.attention.output = nn.Linear(width + H, H, bias=False)
        if attention == "bahdanau":
            self.attention = nn.Module()
            self.attention.query = nn.Linear(H, H, bias=False)
            self.attention.keys = nn.Linear(width, H, bias=False)
            self.attention.score = nn.Linear(H, 1, bias=False)
        if "deep" in kinds:
            self.deep_output = deep.tanh_layers(deep.OUTPUT, H, H)
        self.output = nn.Linear(H, V)

    def start(self, h):
        """The decoder's first states: the sum of both directions' final ones."""
        return h if self.bridged else h.view(-1, self.sides, B, H).sum(1)

    def luong(self, encoded, y):
        scores = torch.einsum("tbh,sbh->bts", y, self.attention.keys(encoded))
        if self.kind == "scaled":
            scores = scores / H**0.5
        ended = torch.arange(S) >= torch.tensor(LENGTHS)[:, None]  # [B, S]
        weights = scores.masked_fill(ended[:, None, :], -torch.inf).softmax(2)
        context = torch.einsum("bts,sbw->tbw", weights, encoded)
        return self.attention.output(torch.cat([context, y], 2)).tanh()

    def bahdanau(self, encoded, x, state):
        keys, outputs = self.attention.keys(encoded), []
        for t in range(T):
            last = (state[0] if isinstance(state, tuple) else state)[-1]
            scores = self.attention.score((self.attention.query(last) + keys).tanh())  # [S, B, 1]
            ended = torch.arange(S)[:, None, None] >= torch.tensor(LENGTHS)[:, None]
            weights = scores.masked_fill(ended, -torch.inf).softmax(0)
            context = (weights * encoded).sum(0)
            y, state = self.decoder.run(torch.cat([x[t], context], 1)[None], state)
            outputs.append(y)
        return torch.cat(outputs)

    def forward(self, source, inputs):
        x = pack_padded_sequence(self.encoder.embed(source), LENGTHS, enforce_sorted=False)
        encoded, state = self.encoder.run(x)
        encoded, _ = pad_packed_sequence(encoded, total_length=S)
        if isinstance(state, tuple):
            state = tuple(map(self.start, state))
            last = state[0][-1]
        else:
            state = self.start(state)
            last = state[-1]
        if self.feedback == "hidden":
            inputs = inputs[:1].expand(T, B)
        x = self.decoder.embed(inputs)
        if self.context == "concat":
            x = torch.cat([x, last.expand(T, B, H)], 2)
        if self.kind == "bahdanau":
            y = self.bahdanau(encoded, x, state)
        elif self.feedback == "output":
            y = torch.cat([self.decoder.run(step[None])[0] for step in x])
        else:
            y, _ = self.decoder.run(x, state)
        if self.kind in ("luong", "scaled"):
            y = self.luong(encoded, y)
        return self.output(deep.through(getattr(self, "deep_output", []), y))


def rounded(t):
    return [float(f"{x:.9g}") for x in t.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: {"shape": list(t.shape), "data": rounded(t)} for name, t in named}


def trace(number, case):
    cell, layers, bidirectional, context, attention, *rest = case
    kinds = [x for x in rest if isinstance(x, str)]
    smoothing = sum(x for x in rest if isinstance(x, float))
    torch.manual_seed(number)
    model = Translator(*case[:5], *kinds).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("attention") and "norm" not in kinds:
                p.mul_(4)  # so that attention is not nearly uniform
            p.copy_(p.float().double())  # exact in both
    source = torch.randint(0, SOURCE, (S, B))
    tokens = torch.randint(0, V, (T + 1, B))
    inputs, targets = tokens[:-1], tokens[1:].clone()
    targets[torch.arange(T)[:, None] >= torch.tensor(TARGET_LENGTHS)] = -1
    logits = model(source, inputs).reshape(T * B, V)
    plain, loss = (
        nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-1, reduction="sum",
                                    label_smoothing=e) for e in (0.0, smoothing))
    loss.backward()
    more = {"smoothing": smoothing, "plain": float(f"{plain.item():.12g}")} if rest else {}
    more |= {"feedback": model.feedback} if model.feedback != "both" else {}
    more |= {kind: True for kind in ("skip", "norm", "deep") if kind in kinds}
    more |= {"hidden_backward": HB} if model.bridged else {}
    return {
        "torch": torch.__version__, "cell": cell, "layers": layers, "S": S, "T": T, "B": B,
        "source_vocab": SOURCE, "V": V, "E": E, "H": H, "bidirectional": bidirectional,
        "context": context, "attention": attention, "source": source.tolist(),
        "lengths": LENGTHS, "inputs": inputs.reshape(-1).tolist(),
        "targets": targets.reshape(-1).tolist(),
        "log_probabilities": rounded(logits.log_softmax(1)), "loss": float(f"{loss.item():.12g}"),
        "weights": tensors((n.replace("encoder.bridge", "bridge"), p)
                           for n, p in model.named_parameters()),
        "gradients": tensors((n.replace("encoder.bridge", "bridge"),
                              torch.zeros_like(p) if p.grad is None else p.grad)
                             for n, p in model.named_parameters()),
    } | more


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for number, (name, case) in enumerate(CASES.items()):
        text = json.dumps(trace(number, case), separators=(",", ":"))
        (folder / f"translator-{name}.json").write_text(text + "\n")


main()
