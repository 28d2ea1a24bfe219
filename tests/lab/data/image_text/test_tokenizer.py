# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Captions to tokens, against what transformers' CLIP tokenizer makes.

The files are written by ``tests/lab/models/vision_text/make_golden.py``.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from paddle_adagc.lab.data.image_text.tokenizer import CaptionTokenizer

GOLDEN = Path(__file__).parents[2] / "models/vision_text/golden"


def test_tokens_are_those_of_transformers():
    golden = json.loads((GOLDEN / "tokens.json").read_text())
    tokenizer = CaptionTokenizer(GOLDEN / "tokenizer.json", golden["context"])
    assert (tokenizer.start_token, tokenizer.end_token) == (0, 1)
    for caption, row in zip(golden["captions"], golden["rows"], strict=True):
        ids = tokenizer(caption)
        assert ids.dtype == np.int64
        assert ids.shape == (golden["context"],)
        np.testing.assert_array_equal(ids[: len(row)], row)
        assert not ids[len(row) :].any()


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        CaptionTokenizer(tmp_path / "tokenizer.json", 77)
    text = (GOLDEN / "tokenizer.json").read_text()
    other = tmp_path / "other.json"
    other.write_text(text.replace("<|startoftext|>", "<s>"))
    with pytest.raises(ValueError, match=r"no token '<\|startoftext\|>'"):
        CaptionTokenizer(other, 77)
    with pytest.raises(ValueError, match="context_length is 2"):
        CaptionTokenizer(GOLDEN / "tokenizer.json", 2)
