#!/usr/bin/env python3
"""Writes the scores that BLEU and BookBLEU are held against, bleu.json, and sacreBLEU's words and
scores of texts, words.json.

    pip install sacrebleu==2.6.0 && python3 bleu.py [folder]

A case is a corpus: pairs of a translation and its reference, both token numbers, sacreBLEU's
corpus score of their decimal numbers as words, and the textbook's score of each pair for k = 1 to 4.
"""
import collections
import json
import math
import pathlib
import random
import sys

import sacrebleu


def book(pred_seq, label_seq, k):
    """Dive into Deep Learning, "Sequence-to-Sequence Learning for Machine Translation"."""
    pred_tokens, label_tokens = pred_seq.split(' '), label_seq.split(' ')
    len_pred, len_label = len(pred_tokens), len(label_tokens)
    score = math.exp(min(0, 1 - len_label / len_pred))
    for n in range(1, min(k, len_pred) + 1):
        num_matches, label_subs = 0, collections.defaultdict(int)
        for i in range(len_label - n + 1):
            label_subs[' '.join(label_tokens[i: i + n])] += 1
        for i in range(len_pred - n + 1):
            if label_subs[' '.join(pred_tokens[i: i + n])] > 0:
                num_matches += 1
                label_subs[' '.join(pred_tokens[i: i + n])] -= 1
        score *= math.pow(num_matches / (len_pred - n + 1), math.pow(0.5, n))
    return score


def text(tokens):
    return " ".join(map(str, tokens))


def corrupted(reference, rate):
    out = []
    for token in reference:
        if random.random() < rate:
            out += random.choice([[], [random.randrange(9)], [token, token]])
        else:
            out.append(token)
    return out


def corpus(pairs, longest, rate, cut=0):
    made = []
    for _ in range(pairs):
        reference = [random.randrange(9) for _ in range(random.randint(1, longest))]
        translation = corrupted(reference, rate)
        made.append((translation[:len(translation) - cut], reference))
    return made


random.seed(1)
CASES = {
    "exact": corpus(4, 9, 0),
    "near": corpus(20, 12, 0.2),
    "far": corpus(20, 12, 0.8),
    "too short": corpus(10, 12, 0.1, cut=3),
    "repeated": [([1] * 7, [1, 2, 1, 3, 4])],
    "no four in a row": [([1, 2, 3, 9, 5, 6], [1, 2, 3, 4, 5, 6])],
    "one token in common": [([1, 2, 3, 4, 5], [5, 6, 7, 8, 9])],
    "nothing in common": [([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])],
    "three tokens": [([1, 2, 3], [1, 2, 3])],
    "empty": [([], [1, 2])],
    "one of two empty": [([], [1, 2]), ([1, 2, 3, 4], [1, 2, 3, 4])],
    "longer than reference": [([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5])],
}

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
cases = []
for name, pairs in CASES.items():
    score = sacrebleu.corpus_bleu([text(t) for t, _ in pairs], [[text(r) for _, r in pairs]],
                                  smooth_method="exp", tokenize="none")
    cases.append({"name": name, "translations": [t for t, _ in pairs],
                  "references": [r for _, r in pairs], "bleu": score.score,
                  "book": [[book(text(t), text(r), k) for k in range(1, 5)] for t, r in pairs]})
lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
(folder / "bleu.json").write_text(f"[\n{lines}\n]\n")

# Each text is the translation of the next one. Some have what the tokenizer treats by a rule.
TEXTS = [
    "je suis chez moi .", "Je suis chez moi.", "il est calme.", "Il est calme !", "", "rien",
    "3.14, 1,000 and 10-20; a-b", "3.14 , 1,000 and 10 - 20 ; a-b", "a.b,c. d,e", ".5 5. ,5 5,",
    "&quot;A&amp;B&quot; &lt;c&gt; &amp;lt;", '"A&B" <c> &lt;', "d'accord, l'été\u202f? – oui…",
    "d'accord , l'été ? – oui …", "[x] {y} (z) ~`^_|\\/@#$%*+=", "a <skipped> b-", "über – 北京。a",
    "it's 5pm: let's go!", "it ' s 5pm : let 's go !", "0-0 0-a a-0 -0", "tab\there  two",
]
metric = sacrebleu.BLEU(tokenize="13a")
pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1]))
near = [(t, t.replace("a", "e", 1)) for t in TEXTS]
cases = [{"pairs": each, "words": [metric.tokenizer(t.rstrip()).split() for t, _ in each],
          "bleu": sacrebleu.corpus_bleu([t for t, _ in each], [[r for _, r in each]]).score}
         for each in (pairs, near, near[:3])]
lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
(folder / "words.json").write_text(f"[\n{lines}\n]\n")
