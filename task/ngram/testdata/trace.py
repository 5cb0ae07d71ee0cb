#!/usr/bin/env python3
"""Writes trace.json: perplexities by nltk that the estimators are held against.

    pip install nltk==3.10.4 && python3 trace.py

The text is corpus/opticks.txt, lower-case, with all but a-z as spaces; "char": its characters,
"word": its words. The first `train` tokens are counted, from the N-th on, each with its history of
N-1 tokens; the next `test` are predicted, from the N-th on. Token 0 stands for what was not counted.

nltk has Kneser-Ney and Laplace. Its Kneser-Ney gives a token that it never saw no probability: here,
as usual, its unigrams are discounted too, and 1/V takes the rest. Jelinek-Mercer is written on its
interpolation.
"""
import json
import math
import pathlib
import re

from nltk.lm.api import Smoothing
from nltk.lm.models import InterpolatedLanguageModel, Laplace
from nltk.lm.smoothing import KneserNey
from nltk.lm.vocabulary import Vocabulary

here = pathlib.Path(__file__).parent


class Discounted(KneserNey):
    def unigram_score(self, word):
        count, total = self._continuation_counts(word)
        rest = self.discount * len(self.counts.unigrams) / total
        return max(count - self.discount, 0) / total + rest / len(self.vocab)


class JelinekMercer(Smoothing):
    def __init__(self, vocabulary, counter, weight):
        super().__init__(vocabulary, counter)
        self.weight = weight

    def unigram_score(self, word):
        return self.weight * self.counts.unigrams.freq(word) + (1 - self.weight) / len(self.vocab)

    def alpha_gamma(self, word, context):
        return self.weight * self.counts[context].freq(word), 1 - self.weight


def main():
    text = (here / "../../../corpus/opticks.txt").read_text()
    text = re.sub("[^a-z]+", " ", text.lower()).strip()
    cases = []
    for unit, tokens, train, test in ("char", list(text), 60000, 6000), \
            ("word", text.split(), 20000, 3000):
        vocabulary = Vocabulary(tokens[:train], unk_cutoff=1)
        for order in 2, 3, 5:
            grams = [tokens[end - k:end] for end in range(order, train + 1)
                     for k in range(1, order + 1)]
            for smoothing, model in {
                "laplace": Laplace(order, vocabulary=vocabulary),
                "jelinek-mercer:0.6": InterpolatedLanguageModel(
                    JelinekMercer, order, vocabulary=vocabulary, params={"weight": 0.6}),
                "kneser-ney": InterpolatedLanguageModel(
                    Discounted, order, vocabulary=vocabulary,
                    params={"discount": 0.75, "order": order}),
            }.items():
                model.fit([map(tuple, grams)])
                loss = 0
                for end in range(train + order - 1, train + test):
                    history = tuple(vocabulary.lookup(tokens[end - order + 1:end]))
                    loss -= math.log(model.unmasked_score(vocabulary.lookup(tokens[end]), history))
                cases.append({"unit": unit, "train": train, "test": test, "order": order,
                              "vocabulary": len(vocabulary), "smoothing": smoothing,
                              "perplexity": math.exp(loss / (test - order + 1))})
                print(cases[-1], flush=True)
    (here / "trace.json").write_text(json.dumps(cases, indent=1) + "\n")


main()
