"""PyTorch with cuDNN at Rondo's work on a GPU: how many tokens a second one process trains on.

The job is torch_lm.py's, with the model and its inputs on the GPU. Every shape and --dtype is
measured in every --mode, in windows that end when the GPU has done their steps, and printed as one
JSON object a line: its rates, or the reason why there are none. The modes are in the outermost
loop: whoever stops this early has the first modes of all shapes.

Types: float32, and tf32, which lets float32 products round their operands; bfloat16 and float16
under autocast, with float32 weights; and -weights, where all of the model is of half precision,
which is less exact than Rondo, whose weights are float32, and spares cuDNN a copy of them in each
step. Modes: eager; graph, where a whole step (forward, backward, clipping, update, state) is one
CUDA graph; compile, torch.compile of the model. No value is read between steps.
"""

import argparse
import itertools
import json
import math
import statistics
import time

import torch

from torch_lm import LanguageModel, detached, words

WARM_STEPS = 12
DTYPES = ["float32", "tf32", "bfloat16", "bfloat16-weights", "float16", "float16-weights"]
MODES = ["eager", "graph", "compile"]


CELLS = ["rnn", "rnn-relu", "gru", "lstm"]
SIZES = ["hidden", "layers", "batch", "bptt", "vocab", "embed"]


def shapes(text):
    """A namespace for each shape, which also has its text."""
    found = []
    for shape in text.split(","):
        cell, *sizes = shape.split(":")
        if cell not in CELLS or len(sizes) != len(SIZES):
            raise argparse.ArgumentTypeError(f"{shape!r} is not cell:H:L:B:T:V:E")
        named = dict(zip(SIZES, map(int, sizes)))
        found.append(argparse.Namespace(shape=shape, cell=cell, **named))
    return found


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=shapes, default=shapes("lstm:256:1:32:35:28:0"),
                        help="cell:H:L:B:T:V:E, by commas; E 0: one-hot input")
    parser.add_argument("--dtype", type=words(*DTYPES), default=DTYPES, help="by commas")
    parser.add_argument("--mode", type=words(*MODES), default=MODES, help="by commas")
    parser.add_argument("--seconds", type=float, default=1, help="length of a window")
    parser.add_argument("--windows", type=int, default=3, help="the median of these is reported")
    parser.add_argument("--device", default="cuda", help="cpu: only to try this script")
    parser.add_argument("--versions", action="store_true", help="print them, and measure nothing")
    return parser.parse_args()


class HalfModel(LanguageModel):
    """The model with all weights of half precision: only the loss is float32."""

    def forward(self, tokens, targets, state):
        if self.embedding is None:
            x = torch.nn.functional.one_hot(tokens, self.vocab).to(self.out.weight.dtype)
        else:
            x = self.embedding(tokens)
        y, state = self.rnn(x, state)
        logits = self.out(y).flatten(0, 1).float()
        return torch.nn.functional.cross_entropy(logits, targets.flatten()), state


class Trainer:
    """Takes steps over a few batches, round and round."""

    def __init__(self, o, dtype, mode):
        torch.manual_seed(1)
        self.device, self.mode = torch.device(o.device), mode
        name, _, pure = dtype.partition("-")
        half = getattr(torch, name) if name.endswith("16") else None
        kind = HalfModel if pure else LanguageModel
        self.model = kind(o.cell, o.vocab, o.embed, o.hidden, o.layers).to(self.device)
        width = half if pure else torch.float32
        self.model.to(width)
        self.autocast = half if half and not pure else None
        self.forward = torch.compile(self.model) if mode == "compile" else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=True)
        self.batches = torch.randint(o.vocab, (8, 2, o.bptt, o.batch), device=self.device)
        zeros = torch.zeros(o.layers, o.batch, o.hidden, device=self.device, dtype=width)
        self.state = (zeros, zeros.clone()) if o.cell == "lstm" else zeros
        self.steps, self.loss, self.graph = 0, None, None

    def train(self, tokens, targets, state):
        """One step; returns the state after it."""
        with torch.autocast(self.device.type, dtype=self.autocast or torch.bfloat16,
                            enabled=self.autocast is not None, cache_enabled=self.graph is None):
            self.loss, after = self.forward(tokens, targets, state)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return detached(after)

    def record(self):
        """Makes a step a CUDA graph, which reads its batch and its state where they lie."""
        self.batch = self.batches[0].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.keep(self.train(*self.batch, self.state))
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.keep(self.train(*self.batch, self.state))

    def keep(self, after):
        """Puts a state where the next step reads it."""
        if not isinstance(after, tuple):
            self.state.copy_(after)
            return
        for old, new in zip(self.state, after):
            old.copy_(new)

    def step(self):
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        if self.mode != "graph":
            self.state = self.train(*batch, self.state)
            return
        if self.graph is None:
            self.record()
        self.batch.copy_(batch)
        self.graph.replay()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, steps):
        """Takes so many steps and returns how many a second it took: done, not only asked for."""
        self.wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return steps / (time.perf_counter() - start)


def rates(o, dtype, mode):
    """Tokens a second of each window."""
    torch._dynamo.reset()
    tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    trainer = Trainer(o, dtype, mode)
    trainer.run(WARM_STEPS)
    # The host is ahead of the GPU, so that a window is so many steps, and not until so late.
    steps = max(1, math.ceil(o.seconds * trainer.run(WARM_STEPS)))
    windows = [trainer.run(steps) * o.batch * o.bptt for _ in range(o.windows)]
    if not math.isfinite(trainer.loss.item()):
        raise ValueError("the loss is not finite: these rates mean nothing")
    return windows


def versions():
    return {"torch": torch.__version__, "cuda": torch.version.cuda or "",
            "cudnn": torch.backends.cudnn.version() or 0, "gpu": torch.cuda.is_available()}


def main():
    o = options()
    if o.versions:
        print(json.dumps(versions()))
        return
    for mode, shape, dtype in itertools.product(o.mode, o.shapes, o.dtype):
        row = {"peer": "torch " + torch.__version__, "shape": shape.shape, "dtype": dtype,
               "mode": mode}
        try:
            row["windows"] = rates(argparse.Namespace(**{**vars(o), **vars(shape)}), dtype, mode)
            row["tokens_per_second"] = statistics.median(row["windows"])
        except Exception as failure:  # a setting that fails must not end the others
            lines = str(failure).strip().splitlines() or [""]
            row["failed"] = f"{type(failure).__name__}: {lines[0]}"
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
