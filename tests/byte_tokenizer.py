# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of bytes, in the file that the Paddle libraries read."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

END = "\0"


def byte_tokenizer():
    """Tokens are the bytes of UTF-8, ids their values, 0 to 255.

    The byte 0, which the embedded corpus has after each document and text
    does not contain, is the special token of the end.
    """
    # ByteLevel writes a byte as a printable character: Latin-1's stand for
    # themselves, the other bytes, in their order, are those from U+0100 on.
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = (b for b in range(256) if chr(b) not in characters)
    vocabulary = {
        character: ord(character) if ord(character) < 256 else next(others)
        for character in characters
    }
    vocabulary = {k: v for k, v in vocabulary.items() if v != 0}
    vocabulary[END] = 0
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    model.decoder = decoders.ByteLevel()
    end = tokenizers.AddedToken(END, special=True, normalized=False)
    model.add_special_tokens([end])
    return model
