#!/usr/bin/env python3
"""Writes trace.json: what hmmlearn makes of a text, which the model is held against.

    pip install hmmlearn==0.3.3 && python3 trace.py

The text is corpus/opticks.txt, lower-case, with all but a-z as spaces; its characters are numbered
from 1 as they come, and token 0 does not occur. The first `tokens` are cut into sequences of
`length`. Counts are given; with the pseudo-count they are the first parameters. `losses` are the
negative log-likelihoods of the text before each iteration of Baum-Welch, `loss` that of the next
`length` tokens by the last parameters, and `path` their likeliest path.
"""
import json
import pathlib
import re

import numpy
from hmmlearn.hmm import CategoricalHMM

here = pathlib.Path(__file__).parent


def main():
    text = (here / "../../../corpus/opticks.txt").read_text()
    text = re.sub("[^a-z]+", " ", text.lower()).strip()
    known = {}
    ids = numpy.array([known.setdefault(c, len(known) + 1) for c in text])
    cases = []
    for states, tokens, length, pseudo, iterations in (1, 500, 100, 0.1, 2), \
            (3, 3000, 3000, 0.01, 12), (5, 4200, 700, 1, 12):
        rng, V = numpy.random.default_rng(states), len(known) + 1
        counts = [(rng.exponential(size=n) * 100).astype(numpy.float32)
                  for n in (states, states * states, states * V)]
        m = CategoricalHMM(states, startprob_prior=1 + pseudo, transmat_prior=1 + pseudo,
                           emissionprob_prior=1 + pseudo, n_features=V, n_iter=iterations,
                           tol=-numpy.inf, init_params="", implementation="scaling")
        shares = [c.reshape(-1, n).astype(float) + pseudo
                  for c, n in zip(counts, (states, states, V))]
        start, m.transmat_, m.emissionprob_ = [c / c.sum(1, keepdims=True) for c in shares]
        m.startprob_ = start[0]
        lengths = [min(length, tokens - at) for at in range(0, tokens, length)]
        m.fit(ids[:tokens, None], lengths)
        test = ids[tokens:tokens + length, None]
        log, path = m.decode(test)
        cases.append({"states": states, "vocabulary": V, "tokens": tokens, "length": length,
                      "pseudo": pseudo, "counts": [float(x) for c in counts for x in c],
                      "losses": [-x for x in m.monitor_.history], "loss": -m.score(test),
                      "path": path.tolist(), "path_loss": -log})
    (here / "trace.json").write_text(json.dumps(cases) + "\n")


main()
