"""PyTorch at Rondo's translation: the same network, pairs, vocabularies and optimizer.

The network is Dive into Deep Learning's ("Sequence-to-Sequence Learning for Machine Translation"):
a torch.nn.GRU reads the embedded source, another the embedded target, each token with the encoder's
last state beside it. With --attention luong its outputs attend to the encoder's (Luong et al.
2015, general scores, input not fed). Texts are prepared as in the book, and words that come less
than --min-frequency times are <unk>.

For each file of --eval it prints a JSON object: the mean loss of a target by teacher forcing, and
of greedy translations sacreBLEU's BLEU and the mean of the book's BLEU with k = 2, in percent.
"""

import argparse
import collections
import json
import math
import random
import time

import sacrebleu
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

UNKNOWN, BEGIN, END, PADDING = 0, 1, 2, -1
SHOWN = 4  # translations of a file with so many are printed


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="lines of source TAB target")
    parser.add_argument("--eval", required=True, nargs="+", help="pairs to translate at the end")
    parser.add_argument("--attention", choices=["none", "luong"], default="none")
    parser.add_argument("--embed", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--clip", type=float, default=1)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--min-frequency", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def words(text):
    text = text.replace("\u202f", " ").replace("\xa0", " ").lower()
    return "".join(" " + c if i > 0 and c in ",.!?" and text[i - 1] != " " else c
                   for i, c in enumerate(text)).split()


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [tuple(words(side) for side in line.rstrip("\n").split("\t")[:2]) for line in lines]


def vocabulary(texts, least):
    counts = collections.Counter(word for text in texts for word in text)
    return ["<unk>", "<bos>", "<eos>"] + [w for w, n in counts.most_common() if n >= least]


def encode(texts, tokens):
    ids = {token: i for i, token in enumerate(tokens)}
    return [torch.tensor([ids.get(word, UNKNOWN) for word in text] + [END]) for text in texts]


class Translator(torch.nn.Module):
    def __init__(self, o, source, target):
        super().__init__()
        self.sides, drop = 1 + o.bidirectional, o.dropout * (o.layers > 1)
        self.drop, self.attention = torch.nn.Dropout(o.dropout), o.attention
        self.source = torch.nn.Embedding(source, o.embed)
        self.target = torch.nn.Embedding(target, o.embed)
        self.encoder = torch.nn.GRU(o.embed, o.hidden, o.layers, dropout=drop,
                                    bidirectional=o.bidirectional)
        self.decoder = torch.nn.GRU(o.embed + o.hidden, o.hidden, o.layers, dropout=drop)
        self.key = torch.nn.Linear(self.sides * o.hidden, o.hidden, bias=False)
        self.join = torch.nn.Linear((self.sides + 1) * o.hidden, o.hidden, bias=False)
        self.output = torch.nn.Linear(o.hidden, target)

    def encode(self, sources):
        lengths = torch.tensor([len(s) for s in sources])
        x = pack_padded_sequence(self.source(pad_sequence(sources)), lengths, enforce_sorted=False)
        y, h = self.encoder(x)
        y = self.drop(pad_packed_sequence(y)[0])  # the last layer's, too, as Rondo drops it
        h = h.view(-1, self.sides, *h.shape[1:]).sum(1)
        absent = torch.arange(len(y))[None, :] >= lengths[:, None]
        return h, (h[-1], y.transpose(0, 1), absent)

    def decode(self, inputs, h, source):  # inputs: [T, B]
        last, encoded, absent = source
        x = torch.cat([self.target(inputs), last.expand(len(inputs), -1, -1)], 2)
        y, h = self.decoder(x, h)
        y = self.drop(y)
        if self.attention == "luong":
            q = y.transpose(0, 1)
            scores = q @ self.key(encoded).transpose(1, 2)
            weights = scores.masked_fill(absent[:, None, :], -math.inf).softmax(2)
            y = self.join(torch.cat([weights @ encoded, q], 2)).tanh().transpose(0, 1)
        return self.output(y), h

    def loss(self, sources, targets):  # summed, and the targets
        labels = pad_sequence(targets, padding_value=PADDING)
        inputs = torch.cat([torch.full_like(labels[:1], BEGIN), labels[:-1].clamp(min=0)])
        logits, _ = self.decode(inputs, *self.encode(sources))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                                        ignore_index=PADDING, reduction="sum")
        return loss, sum(map(len, targets))

    @torch.no_grad()
    def translate(self, sources, most):
        h, source = self.encode(sources)
        token, found = torch.full((1, len(sources)), BEGIN), []
        for _ in range(most):
            logits, h = self.decode(token, h, source)
            logits[..., BEGIN] = -math.inf
            token = logits.argmax(2)
            found.append(token[0])
        rows = torch.stack(found, 1).tolist()
        return [row[:row.index(END)] if END in row else row for row in rows]


def book(translation, reference, k=2):
    score = math.exp(min(0, 1 - len(reference) / len(translation))) if translation else 0
    for n in range(1, min(k, len(translation)) + 1):
        grams = [collections.Counter(tuple(s[i:i + n]) for i in range(len(s) - n + 1))
                 for s in (translation, reference)]
        share = (grams[0] & grams[1]).total() / (len(translation) - n + 1)
        score *= math.pow(share, math.pow(0.5, n))
    return score


def evaluate(model, sources, references, tokens, most):
    model.eval()
    with torch.no_grad():
        targets = encode(references, tokens)
        total, count = model.loss(sources, targets)
    found = [[tokens[i] for i in row] for row in model.translate(sources, most)]
    known = [[tokens[i] for i in row[:-1].tolist()] for row in targets]
    bleu = sacrebleu.corpus_bleu([" ".join(t) for t in found], [[" ".join(r) for r in known]],
                                 tokenize="none", force=True).score  # no warning of spaces
    scores = [book(t, r) for t, r in zip(found, known)]
    return found, {"loss": total.item() / count, "bleu": bleu,
                   "book_bleu": 100 * sum(scores) / len(scores)}


def main():
    o = options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    random.seed(o.seed)
    pairs, held = read(o.corpus), {path: read(path) for path in o.eval}
    for pair in sum(held.values(), pairs):
        if max(map(len, pair)) > o.max_length:
            raise SystemExit(f"{' '.join(pair[0])}: more than --max-length {o.max_length} tokens")
    vocabularies = [vocabulary(side, o.min_frequency) for side in zip(*pairs)]
    sides = [encode(side, tokens) for side, tokens in zip(zip(*pairs), vocabularies)]
    model = Translator(o, *map(len, vocabularies))
    optimizer = torch.optim.Adam(model.parameters(), o.lr)
    order, begin = list(range(len(pairs))), time.time()
    for epoch in range(o.epochs):
        model.train()
        random.shuffle(order)
        for at in range(0, len(order), o.batch):
            batch = order[at:at + o.batch]
            loss, count = model.loss(*([side[i] for i in batch] for side in sides))
            optimizer.zero_grad()
            (loss / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
    seconds = time.time() - begin
    for path, pairs in held.items():
        sources, references = zip(*pairs)
        sources = encode(sources, vocabularies[0])
        found, result = evaluate(model, sources, references, vocabularies[1], o.max_length)
        print(json.dumps({"eval": path, **result, "seconds": round(seconds, 1)}))
        if len(found) <= SHOWN:
            for translation in found:
                print("    " + " ".join(translation))


if __name__ == "__main__":
    main()
