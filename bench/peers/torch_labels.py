"""PyTorch at Rondo's work on examples: how many tokens a second one process trains on.

The job is that of `rondo train --task classify` or `--task tag` on the same file: an embedding, a
bidirectional layer of torch.nn over packed sequences, a linear layer, cross-entropy, gradients
clipped by norm, Adam. As in Rondo, a shuffled epoch is cut into windows of 64 batches, sorted by
length within a window. Each --mode prints one JSON object.
See torch_lm.py for what PyTorch is given.

  torch_labels.py --write FILE     writes random examples (.tsv or .conll) of 4 to 64 of 5,000 words
"""

import argparse
import json
import random
import statistics
import time

WORDS, LABELS, LONGEST, EXAMPLES, WINDOW = 5000, 8, 64, 8000, 64
FIRST_STEPS = {"eager": 5, "compile": 60}


def write(path):
    rng = random.Random(1)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(EXAMPLES):
            words = [f"w{rng.randrange(WORDS)}" for _ in range(rng.randint(4, LONGEST))]
            if path.endswith(".tsv"):
                out.write(f"label{rng.randrange(LABELS)}\t{' '.join(words)}\n")
            else:
                out.writelines(f"{word} label{rng.randrange(LABELS)}\n" for word in words)
                out.write("\n")


def read(path):
    """Returns examples: words and labels, one or one for each word."""
    text = open(path, encoding="utf-8").read()
    if path.endswith(".tsv"):
        rows = [line.split("\t") for line in text.splitlines()]
        return [(words.split(), [label]) for label, words in rows]
    rows = [[line.split() for line in block.splitlines()] for block in text.strip().split("\n\n")]
    return [([r[0] for r in row], [r[-1] for r in row]) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--corpus")
    parser.add_argument("--cell", choices=["rnn", "gru", "lstm"], default="lstm")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--embed", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--mode", default="eager,compile")
    o = parser.parse_args()
    if o.write:
        return write(o.write)

    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
    from torch_lm import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(o.threads)
    torch.set_flush_denormal(True)
    examples = read(o.corpus)
    number = lambda names: {name: i for i, name in enumerate(sorted(set(names)))}
    ids = number(word for words, _ in examples for word in words)
    labels = number(label for _, row in examples for label in row)
    each = o.corpus.endswith(".conll")

    class Labeller(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(len(ids), o.embed)
            self.rnn = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[o.cell](
                o.embed, o.hidden, bidirectional=True)
            self.out = torch.nn.Linear(2 * o.hidden, len(labels))

        def forward(self, x, lengths, targets):
            y, h = self.rnn(pack_padded_sequence(self.embedding(x), lengths, enforce_sorted=False))
            if each:
                z = pad_packed_sequence(y)[0].flatten(0, 1)
            else:
                z = torch.cat(tuple(h[0] if o.cell == "lstm" else h), 1)
            return torch.nn.functional.cross_entropy(self.out(z), targets, ignore_index=-1)

    def batches():
        rng = random.Random(2)
        while True:
            order = rng.sample(range(len(examples)), len(examples))
            for at in range(0, len(order), WINDOW * o.batch):
                window = sorted(order[at:at + WINDOW * o.batch], key=lambda i: len(examples[i][0]))
                starts = list(range(0, len(window), o.batch))
                for start in rng.sample(starts, len(starts)):
                    rows = [examples[i] for i in window[start:start + o.batch]]
                    x = [torch.tensor([ids[w] for w in words]) for words, _ in rows]
                    t = [torch.tensor([labels[name] for name in row]) for _, row in rows]
                    yield (pad_sequence(x), torch.tensor([len(r) for r in x]),
                           pad_sequence(t, padding_value=-1).flatten())

    for mode in o.mode.split(","):
        torch.manual_seed(1)
        model = Labeller()
        forward = torch.compile(model, dynamic=True) if mode == "compile" else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
        rates, source = [], batches()
        for step in range(FIRST_STEPS[mode] + o.steps):
            x, lengths, targets = next(source)
            began = time.perf_counter()  # reading is not counted
            loss = forward(x, lengths, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step >= FIRST_STEPS[mode]:
                rates.append((lengths.sum().item(), time.perf_counter() - began))
        rate = statistics.median(tokens / seconds for tokens, seconds in rates)
        print(json.dumps({"peer": "torch " + torch.__version__, "mode": mode, "loss": loss.item(),
                          "tokens_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
