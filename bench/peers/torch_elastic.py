"""PyTorch at Rondo's work, under torchrun: a job that its agents restart when a worker dies.

The model and the step are those of torch_lm.py, data-parallel over Gloo. As PyTorch's guide to
torchrun has it, rank 0 saves a snapshot now and then, and every process loads the newest when it
starts. Rank 0 prints the events that bench/recovery reads, one JSON object a line:

  {"event": "worker", "rank": 0, "pid": 7, "world_size": 3, "step": 40}   of every rank; 40 are done
  {"event": "step", "step": 41, "pid": 7, "world_size": 3, "loss": 3.3}   of rank 0
"""

import argparse
import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_agent():
    """Has the kernel end this process with its agent, as the end of a machine or container does.

    The agent's id is in AGENT, if the agent was started by somebody who knows it.
    """
    agent = int(os.environ.get("AGENT", os.getppid()))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != agent:
        raise SystemExit("the agent has ended")


if __name__ == "__main__":
    end_with_agent()  # before the seconds that it takes to load PyTorch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_lm import LanguageModel, detached


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=["rnn", "rnn-relu", "gru", "lstm"], default="lstm")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--embed", type=int, default=0, help="0: one-hot input")
    parser.add_argument("--vocab", type=int, default=28)
    parser.add_argument("--batch", type=int, default=6, help="lanes of all processes together")
    parser.add_argument("--bptt", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--snapshot", required=True, help="file to save to and to start from")
    parser.add_argument("--save-every", type=int, default=20, help="steps between snapshots")
    return parser.parse_args()


def say(**event):
    """Writes a line at once and in one piece: the processes share standard output."""
    os.write(sys.stdout.fileno(), (json.dumps(event) + "\n").encode())


class Trainer:
    """Takes steps over this rank's share of a few batches, round and round."""

    def __init__(self, o, rank, world):
        torch.manual_seed(1)
        model = LanguageModel(o.cell, o.vocab, o.embed, o.hidden, o.layers)
        self.path, self.step_done = o.snapshot, 0
        if os.path.exists(self.path):
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
            model.load_state_dict(saved["model"])
            self.step_done = saved["step"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        ends = [o.batch * r // world for r in (rank, rank + 1)]
        self.batches = torch.randint(o.vocab, (8, 2, o.bptt, o.batch))[..., ends[0]:ends[1]]
        zeros = torch.zeros(o.layers, ends[1] - ends[0], o.hidden)
        self.state = (zeros, zeros.clone()) if o.cell == "lstm" else zeros

    def step(self):
        tokens, targets = self.batches[self.step_done % len(self.batches)]
        loss, state = self.model(tokens, targets, self.state)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.state = detached(state)
        self.step_done += 1
        return loss.item()

    def save(self):
        torch.save({"model": self.model.module.state_dict(), "step": self.step_done},
                   self.path + ".new")
        os.replace(self.path + ".new", self.path)


def main():
    o = options()
    torch.set_num_threads(o.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainer = Trainer(o, rank, world)
    say(event="worker", rank=rank, pid=os.getpid(), world_size=world, step=trainer.step_done)
    while True:  # until the agent ends this process
        loss = trainer.step()
        if rank == 0:
            say(event="step", step=trainer.step_done, pid=os.getpid(), world_size=world, loss=loss)
            if trainer.step_done % o.save_every == 0:
                trainer.save()


if __name__ == "__main__":
    main()
