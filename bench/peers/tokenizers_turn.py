"""Hugging Face's tokenizers' turn in bench/tokenizer.sh: train TEXT SIZE, or encode TEXT FILE."""
import json
import sys
import time

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

task, text, argument = sys.argv[1:]
if task == "train":
    begin = time.perf_counter()
    k = Tokenizer(BPE())
    k.pre_tokenizer, k.decoder = ByteLevel(add_prefix_space=False), Decoder()
    k.train([text], BpeTrainer(vocab_size=int(argument), min_frequency=2, show_progress=False,
                               initial_alphabet=ByteLevel.alphabet()))
    print("tokenizers train %.2f s, %d tokens" % (time.perf_counter() - begin, k.get_vocab_size()))
else:
    k = Tokenizer.from_file(argument)
    with open(text, encoding="utf-8", newline="\n") as file:
        lines = file.read().removesuffix("\n").split("\n")
    begin = time.perf_counter()
    tokens = sum(len(e.ids) for e in k.encode_batch_fast(lines, add_special_tokens=False))
    print("tokenizers", json.dumps({"lines": len(lines), "tokens": tokens,
                                    "seconds": time.perf_counter() - begin}))
