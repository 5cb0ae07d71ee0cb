"""All-reduce of float32 by PyTorch's Gloo on loopback, by the rules of `rondo bench allreduce`.

Each rank is a process with one thread. Before each repetition, outside of the time, the ranks wait
for each other by an all-reduce of a number a rank; a repetition takes as long as its slowest rank.
Sums are checked before they are timed. With --ordered each line of the input is a size, which is
measured once more; without it --sizes are, each once. Rank 0 prints a JSON object a size, with the
members that Rondo's rows have too; busbw is nccl-tests', 2(N-1)/N * bytes / time, of the median.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM, LEAST, MOST = 3, 12, 8000  # repetitions


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--sizes", default="65536,1048576,16777216", help="bytes, by commas")
    parser.add_argument("--seconds", type=float, default=2, help="for each size")
    parser.add_argument("--ordered", action="store_true", help="measure what standard input says")
    return parser.parse_args()


def quantile(values, q):
    """The smallest value that is no less than a fraction q of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def check(rank, world, count):
    """All-reduces numbers whose sum every rank knows, and compares all ranks' bits."""
    numbers = [
        torch.rand(count, generator=torch.Generator().manual_seed(r)) - 0.5 for r in range(world)
    ]
    got = numbers[rank].clone()
    dist.all_reduce(got)
    want = sum(x.double() for x in numbers)
    bound = world * sum(x.double().abs() for x in numbers) / 2**24
    if not bool(((got.double() - want).abs() <= bound).all()):
        raise SystemExit(f"rank {rank}: the sum of {count} numbers is wrong")
    first = got.clone()
    dist.broadcast(first, 0)
    if not torch.equal(first.view(torch.int32), got.view(torch.int32)):
        raise SystemExit(f"rank {rank}: the sum's bits differ from rank 0's")


def timed(world, count, repetitions):
    """Seconds of each repetition, of the slowest rank."""
    buffer, barrier = torch.zeros(count), torch.zeros(world)
    took = torch.empty(repetitions, dtype=torch.float64)
    for i in range(repetitions):
        dist.all_reduce(barrier)
        began = time.perf_counter()
        dist.all_reduce(buffer)
        took[i] = time.perf_counter() - began
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.tolist()


def run(rank, args, sizes, store):
    """One rank: sizes are numbers, or each rank's pipe of them, which ends with None."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank,
                            world_size=args.world)
    checked = set()
    for size in sizes if isinstance(sizes, list) else iter(sizes[rank].recv, None):
        count = size // 4
        if size not in checked:
            check(rank, args.world, count)
            checked.add(size)
        warm = quantile(timed(args.world, count, WARM), 0.5)  # the same number on all ranks
        repetitions = int(min(max(args.seconds / warm, LEAST), MOST))
        took = timed(args.world, count, repetitions)
        if rank == 0:
            median = quantile(took, 0.5)
            share = 2 * (args.world - 1) / args.world
            print(json.dumps({
                "link": "gloo", "wire": "fp32", "world": args.world, "bytes": size,
                "repetitions": repetitions, "ms": 1e3 * median,
                "p99_ms": 1e3 * quantile(took, 0.99), "busbw": share * size / median / 1e9,
            }), flush=True)
    dist.destroy_process_group()


def order(pipes):
    """Hands the sizes that the input says to every rank; its end is the ranks' end."""
    for line in sys.stdin:
        for pipe in pipes:
            pipe.send(int(line))
    for pipe in pipes:
        pipe.send(None)


def main():
    args = options()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sizes = [int(size) for size in args.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        if not args.ordered:
            mp.spawn(run, args=(args, sizes, store), nprocs=args.world)
            return
        heard, said = zip(*(mp.Pipe(duplex=False) for _ in range(args.world)))
        ranks = mp.spawn(run, args=(args, heard, store), nprocs=args.world, join=False)
        threading.Thread(target=order, args=(said,), daemon=True).start()
        while not ranks.join():
            pass


if __name__ == "__main__":
    main()
