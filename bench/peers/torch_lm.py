"""PyTorch at Rondo's work: how many tokens a second one process trains on.

The job is the one that `rondo train` has under the same options: one-hot or embedded tokens, a
stack of torch.nn recurrent layers, a linear layer, mean cross-entropy, gradients clipped by norm,
plain SGD, and a hidden state that is carried, detached, from segment to segment. Tokens are random,
which costs what text costs. Prints one JSON object.
"""

import argparse
import json
import math
import statistics
import time

import torch
from torch.nn import functional


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=["rnn", "rnn-relu", "gru", "lstm"], default="lstm")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--embed", type=int, default=0, help="0: one-hot input")
    parser.add_argument("--vocab", type=int, default=28)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32",
                        help="bfloat16: autocast, float32 weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile the forward pass")
    parser.add_argument("--seconds", type=float, default=2, help="length of a window")
    parser.add_argument("--windows", type=int, default=3, help="the median of these is reported")
    return parser.parse_args()


class LanguageModel(torch.nn.Module):
    def __init__(self, cell, vocab, embed, hidden, layers):
        super().__init__()
        self.vocab = vocab
        self.embedding = torch.nn.Embedding(vocab, embed) if embed else None
        width = embed or vocab
        if cell == "lstm":
            self.rnn = torch.nn.LSTM(width, hidden, layers)
        elif cell == "gru":
            self.rnn = torch.nn.GRU(width, hidden, layers)
        else:
            rule = "relu" if cell == "rnn-relu" else "tanh"
            self.rnn = torch.nn.RNN(width, hidden, layers, nonlinearity=rule)
        self.out = torch.nn.Linear(hidden, vocab)

    def forward(self, tokens, targets, state):
        if self.embedding is None:
            x = functional.one_hot(tokens, self.vocab).float()
        else:
            x = self.embedding(tokens)
        y, state = self.rnn(x, state)
        logits = self.out(y).flatten(0, 1).float()
        return functional.cross_entropy(logits, targets.flatten()), state


def detached(state):
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


class Trainer:
    """Takes steps over a few batches, round and round."""

    def __init__(self, o):
        self.model = LanguageModel(o.cell, o.vocab, o.embed, o.hidden, o.layers)
        self.forward = torch.compile(self.model) if o.compile else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = torch.randint(o.vocab, (8, 2, o.bptt, o.batch))
        self.half = o.dtype == "bfloat16"
        zeros = torch.zeros(o.layers, o.batch, o.hidden)
        self.state = (zeros, zeros.clone()) if o.cell == "lstm" else zeros
        self.steps = 0

    def step(self):
        tokens, targets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            loss, state = self.forward(tokens, targets, self.state)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.state = detached(state)
        return loss.item()


def main():
    o = options()
    torch.manual_seed(1)
    torch.set_num_threads(o.threads)
    trainer = Trainer(o)
    for _ in range(10):
        loss = trainer.step()
    rates = []
    for _ in range(o.windows):
        start, first, now = time.perf_counter(), trainer.steps, 0.0
        while now < o.seconds:
            loss = trainer.step()
            now = time.perf_counter() - start
        rates.append((trainer.steps - first) * o.batch * o.bptt / now)
    if not math.isfinite(loss):
        raise SystemExit("the loss is not finite: these rates mean nothing")
    print(json.dumps({"peer": "torch " + torch.__version__, "options": vars(o), "loss": loss,
                      "tokens_per_second": statistics.median(rates), "rates": rates}))


if __name__ == "__main__":
    main()
