# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens are the tokenizer's own, and every document ends.

Those of captions are what transformers' CLIP tokenizer makes, as
``tests/lab/models/test_hf.py`` checks.
"""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from adagc_lab.data.indexed import IndexedTokens
from adagc_lab.data.tokenizers import CaptionTokenizer, find_tokenizer
from huggingface_hub.errors import HFValidationError
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, models, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "models/vision_text/golden"


def documents_of(tmp_path):
    source = IndexedTokens(str(tmp_path / "out"))
    return [
        source.documents(n, n + 1).tolist()
        for n in range(len(source.boundaries) - 1)
    ]


def test_huggingface(tmp_path, documents, jsonl, tokenizer_json, run):
    model = Tokenizer.from_file(str(tokenizer_json))
    model.no_truncation()
    end = model.token_to_id("</s>")
    manifest = run(jsonl, tokenizer=str(tokenizer_json.parent))
    expected = [[*model.encode(text).ids, end] for text in documents]
    assert documents_of(tmp_path) == expected
    (spelled,) = find_tokenizer(str(tokenizer_json)).load()(["a</s>b"])
    assert end not in spelled  # a text that spells a special token is text
    assert manifest["tokenizer"]["vocab_size"] == 300
    assert manifest["versions"]["tokenizer"]


def test_sentencepiece(tmp_path, documents, jsonl, sentencepiece_model, run):
    model = SentencePieceProcessor(model_file=str(sentencepiece_model))
    run(jsonl, tokenizer=str(sentencepiece_model))
    expected = [[*model.encode(text), model.eos_id()] for text in documents]
    assert documents_of(tmp_path) == expected


def test_a_large_vocabulary_is_int32(tmp_path, run):
    words = models.WordLevel({"a": 0, "b": 70_000, "?": 1, "</s>": 2}, "?")
    model = Tokenizer(words)
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    path = str(tmp_path / "words.json")
    model.save(path)
    (tmp_path / "a.txt").write_text("a b\nb c")
    manifest = run(tmp_path / "a.txt", tokenizer=path, eos_token="</s>")
    assert manifest["train"]["dtype"] == "int32"
    assert documents_of(tmp_path) == [[0, 70_000, 2], [70_000, 1, 2]]


@pytest.fixture
def bad(tmp_path, monkeypatch, tokenizer_json, sentencepiece_model):
    """A working folder of files that cannot be used, or not alone."""
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "config", "cut"):
        (tmp_path / folder).mkdir()
    for name in ("bad.json", "bad.model", "bad.txt"):
        (tmp_path / name).write_text("[]")
    (tmp_path / "spm.model").write_bytes(sentencepiece_model.read_bytes())
    for name in ("alone", "config/tokenizer", "cut/tokenizer"):
        path = tmp_path / f"{name}.json"
        path.write_bytes(tokenizer_json.read_bytes())
    (tmp_path / "config/tokenizer_config.json").write_text("[]")
    (tmp_path / "cut/tokenizer_config.json").write_text('{"eos')


@pytest.mark.usefixtures("bad")
@pytest.mark.parametrize(
    ("name", "eos_token", "error", "message"),
    [
        ("bytes", "</s>", ValueError, "bytes end a document with"),
        ("gone.json", None, FileNotFoundError, "gone.json is not a file"),
        ("a/b/c", None, FileNotFoundError, "a/b/c is not a file"),
        ("bad.json", None, ValueError, "bad.json is no huggingface"),
        ("bad.model", None, ValueError, "bad.model is no sentencepiece"),
        ("bad.txt", None, ValueError, "give a tokenizer.json or a"),
        ("folder", None, FileNotFoundError, "has neither tokenizer.json nor"),
        ("alone.json", None, ValueError, "does not say which token ends"),
        ("alone.json", "<end>", ValueError, "'<end>' is not in .*alone.json"),
        ("config", None, ValueError, r"tokenizer_config\.json holds no"),
        ("cut", None, ValueError, r"cut/tokenizer_config\.json is not JSON"),
        ("spm.model", "<end>", ValueError, "'<end>' is not in .*spm.model"),
    ],
)
def test_an_unusable_tokenizer_is_named(name, eos_token, error, message):
    with pytest.raises(error, match=message):
        find_tokenizer(name, eos_token)


@pytest.mark.parametrize(
    "failure", [OSError("no network\nat all"), HFValidationError("no network")]
)
def test_a_tokenizer_that_is_nowhere(tmp_path, monkeypatch, failure):
    download = mock.Mock(side_effect=failure)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    message = "'byte': neither 'bytes' nor a path, .*hub .*: no network$"
    with pytest.raises(FileNotFoundError, match=message):
        find_tokenizer("byte")


def test_the_end_as_a_piece_of_the_text_is_refused(tmp_path, run):
    pieces = [("<unk>", 0.0), ("</s>", -1.0), ("a", -2.0), ("b", -2.0)]
    model = Tokenizer(models.Unigram(pieces, unk_id=0))
    model.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("ab\na</s>b\nba\n")
    settings = {"tokenizer": str(tmp_path), "eos_token": "</s>"}
    message = r"text\.txt, line 2: .*'a</s>b' holds"
    with pytest.raises(ValueError, match=message):
        run(text, **settings)
    assert run(text, on_error="skip", **settings)["num_bad"] == 1
    assert documents_of(tmp_path) == [[2, 3, 1], [3, 2, 1]]


def test_captions_have_the_tokens_of_transformers():
    golden = json.loads((GOLDEN / "tokens.json").read_text())
    tokenizer = CaptionTokenizer(GOLDEN / "tokenizer.json", golden["context"])
    assert tokenizer.end_token == 1
    for caption, row in zip(golden["captions"], golden["rows"], strict=True):
        ids = tokenizer(caption)
        assert ids.dtype == np.int64
        assert ids.shape == (golden["context"],)
        np.testing.assert_array_equal(ids[: len(row)], row)
        assert not ids[len(row) :].any()


def test_other_files_for_captions_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        CaptionTokenizer(tmp_path / "tokenizer.json", 77)
    text = (GOLDEN / "tokenizer.json").read_text()
    other = tmp_path / "other.json"
    other.write_text("{")
    with pytest.raises(ValueError, match=r"other\.json is no tokenizer"):
        CaptionTokenizer(other, 77)
    other.write_text(text.replace("<|startoftext|>", "<s>"))
    with pytest.raises(ValueError, match=r"captions between <\|startoftext\|>"):
        CaptionTokenizer(other, 77)
