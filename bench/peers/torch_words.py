"""PyTorch at recipe zaremba-2014-small: the validation perplexity after each epoch.

The network and its training are those of the recipe (Zaremba, Sutskever and Vinyals 2014,
arXiv:1409.2329, non-regularized LSTM): embedding, LSTM of two layers of 200, linear layer, initial
weights uniform in +-0.1, SGD on the mean loss of segments of 20 tokens of 20 lanes whose states
are carried on, gradients clipped to norm 0.25, a rate of 20 that halves after each epoch from
--hold on. Tokens are words, and <eos> at the end of each line. Unknown words are <unk>.

  torch_words.py --threads 2 --epochs 13 --hold 4 TRAIN VALID
"""

import argparse
import json
import time

import torch
from torch import nn

WIDTH, LANES, BPTT, RATE, CLIP = 200, 20, 20, 20.0, 0.25


def words(path):
    with open(path, encoding="utf-8") as text:
        return [word for line in text for word in line.split() + ["<eos>"]]


class LanguageModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2)
        self.output = nn.Linear(WIDTH, vocabulary)
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def forward(self, ids, state):
        h, state = self.rnn(self.embedding(ids), state)
        return self.output(h), state


def segments(ids, lanes):
    """Inputs, targets [T, lanes] of consecutive segments."""
    rows = (len(ids) - 1) // lanes
    inputs = torch.tensor(ids[:rows * lanes]).view(lanes, rows).T.contiguous()
    targets = torch.tensor(ids[1:rows * lanes + 1]).view(lanes, rows).T.contiguous()
    return zip(inputs.split(BPTT), targets.split(BPTT))


def loss_of(model, x, y, state):
    logits, state = model(x, state)
    return nn.functional.cross_entropy(logits.view(-1, logits.shape[2]), y.reshape(-1)), state


def evaluate(model, ids):
    total, count, state = 0.0, 0, None
    with torch.no_grad():
        for x, y in segments(ids, 1):
            loss, state = loss_of(model, x, y, state)
            total, count = total + loss.item() * y.numel(), count + y.numel()
    return torch.tensor(total / count).exp().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=13)
    parser.add_argument("--hold", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("train")
    parser.add_argument("valid")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    train, valid = words(o.train), words(o.valid)
    number = {word: i for i, word in enumerate(dict.fromkeys(["<unk>"] + train))}
    train, valid = ([number.get(word, 0) for word in text] for text in (train, valid))
    model = LanguageModel(len(number))
    for epoch in range(o.epochs):
        rate = RATE * 0.5 ** max(0, epoch + 1 - o.hold)
        optimizer, state, begin = torch.optim.SGD(model.parameters(), lr=rate), None, time.time()
        for x, y in segments(train, LANES):
            optimizer.zero_grad()
            loss, state = loss_of(model, x, y, state)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            state = tuple(s.detach() for s in state)
        print(json.dumps({"torch": torch.__version__, "epoch": epoch + 1, "rate": rate,
                          "seconds": round(time.time() - begin, 1),
                          "perplexity": round(evaluate(model, valid), 2)}), flush=True)


main()
