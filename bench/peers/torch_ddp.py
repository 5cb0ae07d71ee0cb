"""PyTorch at Rondo's work on several hosts: DistributedDataParallel over Gloo, float32.

The model and the step are those of torch_lm.py: gradients are averaged by DDP while backward runs,
then clipped by norm. Each process is a rank, on a host of its own; RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and GLOO_SOCKET_IFNAME are in its environment. A world of 1 sums with nobody. Each rank
prints one JSON object: the median over its steps.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_lm import LanguageModel, detached, keep_freed_memory

WARM_STEPS = 5


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=["rnn", "gru", "lstm"], default="lstm")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=28)
    parser.add_argument("--batch", type=int, default=32, help="lanes of this rank")
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


class Trainer:
    """Takes steps over a few batches, round and round."""

    def __init__(self, o, rank, world):
        torch.manual_seed(1)
        self.raw = LanguageModel(o.cell, o.vocab, 0, o.hidden, o.layers)
        self.model = self.raw
        if world > 1:
            self.model = DistributedDataParallel(self.raw, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.raw.parameters(), lr=0.1, fused=True)
        torch.manual_seed(2 + rank)
        self.batches = torch.randint(o.vocab, (8, 2, o.bptt, o.batch))
        zeros = torch.zeros(o.layers, o.batch, o.hidden)
        self.state = (zeros, zeros.clone()) if o.cell == "lstm" else zeros
        self.steps = 0

    def step(self):
        tokens, targets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        loss, state = self.model(tokens, targets, self.state)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.raw.parameters(), 1.0)
        self.optimizer.step()
        self.state = detached(state)


def main():
    o = options()
    keep_freed_memory()
    torch.set_num_threads(o.threads)
    torch.set_flush_denormal(True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    trainer = Trainer(o, rank, world)
    for _ in range(WARM_STEPS):
        trainer.step()
    took = []
    for _ in range(o.steps):
        began = time.perf_counter()
        trainer.step()
        took.append(time.perf_counter() - began)
    step = statistics.median(took)
    print(json.dumps({
        "rank": rank, "world": world, "step_seconds": step,
        "tokens_per_second": world * o.batch * o.bptt / step,
        "parameters": sum(p.numel() for p in trainer.raw.parameters()),
    }), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
