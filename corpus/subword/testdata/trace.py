#!/usr/bin/env python3
"""Writes tokenizer.json files and trace.json, what tokenizers makes of texts by them.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 && python3 trace.py

Each is trained on ../../opticks.txt and the texts below, so that it has little of everything. With
the argument "many" it prints the same of a text for each code point of Unicode 3.2 and of random
mixtures, for TestPeer. trained.tokenizer.json is what BpeTrainer learns from ../../opticks.txt.
"""
import io
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as d
from tokenizers import models as m
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p
from tokenizers import trainers as t

here = pathlib.Path(__file__).parent
llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

texts = [
    "", " ", "a", "  ", "\n", "\n\n  \n", "Hello, world!", "it's we'll they're I'D 'tis ''s'",
    "The Time Traveller (for so it will be convenient to speak of him)", "a  b   c\td\n\ne \n f",
    " leading and trailing ", "na\u00efve caf\u00e9 \u2014 \u00c5ngstr\u00f6m", "e\u0301 a\u0308\u0323 \u1e69 s\u0323\u0307",
    "\u0130stanbul \u03a3\u03a3 \u00df \u017f \u212a \u2126", "\u4e2d\u6587\u5206\u8bcd, \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u0623\u0647\u0644\u0627 \u0628\u0643", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "x\u00a0y\u2003z\u3000w\u200bv\u0085u\u2028t", "control \x00\x01\x1f\x7f\x85\x9f end", "\ufeffbom \ufffd",
    "3.14159 1,000,000 1234567 \u0663\u0664 \u2167 \u00bd x2 2x", "don't stop!!! ... \u201cquoted\u201d \u00abfr\u00bb -- __init__ a_b",
    "https://example.org/a?b=c&d=%20#e", "if (x == 1) {\n\treturn y[0];\n}\n", "<unk> [UNK] [MASK] <s> a<s>b <eos><eos>  <eos>",
    "new york New York newyork", "\ufb01 \u2460 \uff21\uff22 \u3392", "a" * 150, "\u00e9" * 60, "ab " * 40,
    "\u2581already \u2581marked", "\u0120byte \u010alevel", "R\u00e9sum\u00e9 n't 'm do not 's 've 're . ? ! ,", "\U00020000\U0002a700\U0002b920 \uf900",
]
for text in list(texts):
    if len(text) > 3:
        texts.append(text.upper() + "\n" + text)
texts += [a + b for a, b in zip(texts[5:20], texts[20:35])]

extra = [AddedToken("new york", single_word=True, normalized=True), AddedToken("<eos>", lstrip=True, rstrip=True),
         AddedToken("NEW", normalized=True)]


def built(name, model, trainer, normalizer=None, split=None, decoder=None, added=()):
    k = Tokenizer(model)
    if normalizer:
        k.normalizer = normalizer
    if split:
        k.pre_tokenizer = split
    if decoder:
        k.decoder = decoder
    lines = (here / "../../opticks.txt").read_text().splitlines()[:1500]
    k.train_from_iterator(lines + texts[:38], trainer)
    k.add_tokens(list(added))
    return name, k


def bpe(size, **more):
    return t.BpeTrainer(vocab_size=size, show_progress=False, **more)


def pieces(size, **more):
    return t.WordPieceTrainer(vocab_size=size, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], **more)


def tokenizers():
    alphabet = p.ByteLevel.alphabet()
    yield built("gpt2", m.BPE(), bpe(600, initial_alphabet=alphabet, special_tokens=["<s>"]),
                None, p.ByteLevel(add_prefix_space=False), d.ByteLevel(), extra)
    yield built("roberta", m.BPE(), bpe(500, initial_alphabet=alphabet, special_tokens=["<s>", "<unk>"]),
                n.NFC(), p.ByteLevel(add_prefix_space=True), d.ByteLevel())
    yield built("llama3", m.BPE(ignore_merges=True), bpe(500, initial_alphabet=alphabet, special_tokens=["<s>"]),
                None, p.Sequence([p.Split(Regex(llama3), "isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)]), d.ByteLevel())
    yield built("digits", m.BPE(), bpe(500, initial_alphabet=alphabet),
                n.NFKC(), p.Sequence([p.Digits(individual_digits=True), p.Punctuation(), p.ByteLevel(add_prefix_space=False)]), d.ByteLevel())
    fallback = ["<unk>", "<s>"] + ["<0x%02X>" % i for i in range(256)]
    yield built("llama2", m.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
                bpe(600, special_tokens=fallback, limit_alphabet=80), n.Sequence([n.Prepend("\u2581"), n.Replace(" ", "\u2581")]), None,
                d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]), extra)
    for scheme in "always", "first", "never":
        yield built("metaspace-" + scheme, m.BPE(unk_token="<unk>", fuse_unk=scheme == "first"), bpe(400, special_tokens=["<unk>"], limit_alphabet=70),
                    n.NFKC(), p.Metaspace(prepend_scheme=scheme), d.Metaspace(prepend_scheme=scheme), extra)
    yield built("suffix", m.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), bpe(450, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=90),
                n.Sequence([n.NFD(), n.Lowercase(), n.StripAccents()]), p.Whitespace(), d.BPEDecoder("</w>"), extra)
    yield built("prefix", m.BPE(unk_token="<unk>", continuing_subword_prefix="##"), bpe(450, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=90),
                n.NFKD(), p.Sequence([p.WhitespaceSplit(), p.Digits(individual_digits=False), p.Punctuation("contiguous")]), d.WordPiece("##", False))
    yield built("bert-uncased", m.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100), pieces(600),
                n.BertNormalizer(), p.BertPreTokenizer(), d.WordPiece(), extra)
    yield built("bert-cased", m.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40), pieces(500, limit_alphabet=120),
                n.BertNormalizer(lowercase=False, strip_accents=False, handle_chinese_chars=False), p.BertPreTokenizer(), d.WordPiece(cleanup=False))
    for behavior in "removed", "merged_with_previous", "merged_with_next", "contiguous":
        yield built("split-" + behavior, m.BPE(unk_token="<unk>"), bpe(300, special_tokens=["<unk>"], limit_alphabet=60),
                    n.Sequence([n.Strip(), n.Replace(Regex(r"\s{2,}"), " ")]),
                    p.Sequence([p.Split(Regex(r"[\s_]|--"), behavior), p.Split(".", behavior, invert=behavior == "contiguous")]), d.Fuse())


def case(k, text):
    e = k.encode(text, add_special_tokens=False)
    return {"ids": e.ids, "text": k.decode(e.ids, skip_special_tokens=False)}


def many():
    draw = random.Random(1)
    # Later versions of Unicode, of which each library has its own, have changed these four.
    changed = [0x166d, 0x1734, 0x1885, 0x1886]
    points = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff and c not in changed
              and not 0x3500 < c < 0x9f00 and not 0xac10 < c < 0xd700 and not 0x20010 < c < 0x2f800 and c < 0xe0200
              and unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"]
    for c in points:
        yield chr(c) + " a" + chr(c) + "1 " + chr(c) + "."
    likely = [ord(c) for c in set("".join(texts))] + [32] * 40 + [10] * 10
    for _ in range(4000):
        yield "".join(chr(draw.choice(likely if draw.random() < 0.9 else points)) for _ in range(draw.randint(1, 60)))
    for _ in range(1000):
        yield " ".join(draw.choice(texts) for _ in range(4))


def main():
    if sys.argv[1:] == ["many"]:
        every = [(x.name.split(".")[0], Tokenizer.from_file(str(x))) for x in sorted(here.glob("*.tokenizer.json"))]
        for text in many():
            print(json.dumps({"input": text, "cases": {name: case(k, text) for name, k in every}}))
        return
    import sentencepiece  # TestPeer needs none

    cases = {}
    for name, k in tokenizers():
        k.save(str(here / (name + ".tokenizer.json")), pretty=False)
        cases[name] = [case(k, text) for text in texts]
    k = Tokenizer(m.BPE())
    k.pre_tokenizer = p.ByteLevel(add_prefix_space=False)
    k.decoder = d.ByteLevel(add_prefix_space=False)
    k.train_from_iterator([(here / "../../opticks.txt").read_text()],
                          bpe(1500, min_frequency=2, initial_alphabet=p.ByteLevel.alphabet(), special_tokens=["<eos>"]))
    k.save(str(here / "trained.tokenizer.json"), pretty=False)
    cases["trained"] = [case(k, text) for text in texts]
    for name, options in {"plain": {}, "bytes": {"byte_fallback": True, "remove_extra_whitespaces": False},
                          "user": {"add_dummy_prefix": False, "user_defined_symbols": ["▁▁", "[MASK]"]}}.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((here / "../../opticks.txt").read_text().splitlines()[:1500]), model_writer=model, model_type="bpe",
            normalization_rule_name="identity", vocab_size=600 if name == "bytes" else 400, minloglevel=2, **options)
        (here / (name + ".model")).write_bytes(model.getvalue())
        k = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        cases[name] = []
        for text in texts:
            ids = k.encode(text)  # a tokenizer.json has another text for <unk>, and for a mark that was in the text
            cases[name].append({"ids": ids, "text": None if 0 in ids or "\u2581" in text else k.decode(ids)})
    (here / "trace.json").write_text(json.dumps({"texts": texts, "cases": cases}, indent=None) + "\n")


if __name__ == "__main__":
    main()
