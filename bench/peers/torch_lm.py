"""PyTorch at Rondo's work: how many tokens a second one process trains on.

The job is the one that `rondo bench train` has under the same options: one-hot or embedded tokens,
a stack of torch.nn recurrent layers, a linear layer, mean cross-entropy, gradients clipped by norm,
plain SGD, and a hidden state that is carried, detached, from segment to segment. Tokens are random,
which costs what text costs.

Every --dtype is measured in every --mode, in windows of at least a step, and printed as one JSON
object a line: its rates, or the reason why there are none. PyTorch is given what its guide to
tuning advises for a CPU: as many threads as cores, oneDNN, denormals flushed to zero, an allocator
that keeps what it has freed, the fused optimizer, and no reading of values between steps.
"""

import argparse
import ctypes
import json
import math
import statistics
import time

import torch
from torch.nn import functional

FIRST_STEPS = {"eager": 2, "compile": 3}  # in which kernels are chosen or compiled
WARM_STEPS = 20  # at most, after those and two more


def words(*allowed):
    def parse(text):
        for word in text.split(","):
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(allowed)}")
        return text.split(",")
    return parse


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
    parser.add_argument("--dtype", type=words("float32", "bfloat16"), default=["float32"],
                        help="by commas; bfloat16: autocast, float32 weights")
    parser.add_argument("--mode", type=words("eager", "compile"), default=["eager"],
                        help="by commas; compile: torch.compile")
    parser.add_argument("--seconds", type=float, default=1, help="length of a window")
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

    def __init__(self, o, dtype, mode):
        torch.manual_seed(1)
        self.model = LanguageModel(o.cell, o.vocab, o.embed, o.hidden, o.layers)
        self.forward = torch.compile(self.model) if mode == "compile" else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=True)
        self.batches = torch.randint(o.vocab, (8, 2, o.bptt, o.batch))
        self.half = dtype == "bfloat16"
        zeros = torch.zeros(o.layers, o.batch, o.hidden)
        self.state = (zeros, zeros.clone()) if o.cell == "lstm" else zeros
        self.steps = 0
        self.loss = None

    def step(self):
        tokens, targets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            self.loss, state = self.forward(tokens, targets, self.state)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.state = detached(state)

    def run(self, seconds, most=math.inf):
        """Takes steps for so long, at least one, and returns how many a second."""
        start, first = time.perf_counter(), self.steps
        while True:
            self.step()
            taken, now = self.steps - first, time.perf_counter() - start
            if taken >= most or now >= seconds:
                return taken / now


def rates(o, dtype, mode):
    """Tokens a second of each window."""
    torch._dynamo.reset()
    trainer = Trainer(o, dtype, mode)
    trainer.run(math.inf, FIRST_STEPS[mode] + 2)
    trainer.run(o.seconds, WARM_STEPS)
    windows = [trainer.run(o.seconds) * o.batch * o.bptt for _ in range(o.windows)]
    if not math.isfinite(trainer.loss.item()):
        raise ValueError("the loss is not finite: these rates mean nothing")
    return windows


def keep_freed_memory():
    """Has glibc's malloc keep large blocks too, so that a step does not fetch them anew."""
    trim_threshold, mmap_threshold, bytes_kept = -1, -3, 1 << 30
    libc = ctypes.CDLL(None)
    for option in (trim_threshold, mmap_threshold):
        if not libc.mallopt(option, bytes_kept):
            raise SystemExit("mallopt: refused; this needs glibc")


def main():
    o = options()
    keep_freed_memory()
    torch.set_num_threads(o.threads)
    torch.set_flush_denormal(True)
    for dtype in o.dtype:
        for mode in o.mode:
            row = {"peer": "torch " + torch.__version__, "dtype": dtype, "mode": mode,
                   "threads": o.threads}
            try:
                row["windows"] = rates(o, dtype, mode)
                row["tokens_per_second"] = statistics.median(row["windows"])
            except Exception as failure:  # a setting that fails must not end the others
                lines = str(failure).strip().splitlines() or [""]
                row["failed"] = f"{type(failure).__name__}: {lines[0]}"
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
