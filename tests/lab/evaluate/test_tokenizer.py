# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
from pathlib import Path

import pytest
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from paddle_adagc.lab.data.prepare.tokenizer import find_tokenizer
from paddle_adagc.lab.evaluate.convert import from_hf, to_hf
from paddle_adagc.lab.evaluate.saved import load_saved
from paddle_adagc.lab.evaluate.tokenizer import (
    TextTokenizer,
    document_end,
    tokenizer_of,
    write_tokenizer,
)

WORDS = ["<s>", "</s>", "a", "b", "c"]


@pytest.fixture
def words(tmp_path):
    """A folder with a tokenizer that begins texts with <s>."""
    folder = tmp_path / "words"
    folder.mkdir()
    tokenizer = Tokenizer(
        WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="c")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text.txt").write_text("one two three two one\n" * 20)
    SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "pieces"),
        vocab_size=13,
        minloglevel=2,
    )
    return folder / "pieces.model"


def test_bytes():
    text = TextTokenizer("bytes", adds_special_tokens=True)
    assert text.encode("aä") == [0x61, 0xC3, 0xA4]
    assert text.decode([0x61, 0, 0xC3, 0xA4]) == "aä"
    assert text.eos_id == text.prefix_id == 0


def test_special_tokens_of_a_tokenizer_file(words):
    plain = TextTokenizer(str(words))
    assert plain.encode("a b") == [2, 3]
    assert plain.encode("a b", special=True) == [0, 2, 3]
    assert plain.prefix_id == plain.eos_id == 1
    special = TextTokenizer(str(words / "tokenizer.json"), True)
    assert special.encode("a b") == [0, 2, 3]
    assert special.encode("<s> a b") == [0, 2, 3]
    assert special.encode("a b", special=False) == [2, 3]
    assert special.prefix_id == 0
    assert special.eos_id == 1
    assert special.decode([0, 2, 3]) == "a b"
    assert special.decode([0, 2], special=True) == "<s> a"


def test_sentencepiece(pieces):
    plain = TextTokenizer(str(pieces))
    tokens = plain.encode("two one")
    assert plain.decode(tokens) == "two one"
    assert plain.prefix_id == plain.eos_id == 2
    special = TextTokenizer(str(pieces), adds_special_tokens=True)
    assert special.encode("two one") == [1, *tokens]
    assert special.prefix_id == 1


def with_manifest(saved, folder, tokenizer):
    manifest = Path(folder, "data.manifest.json")
    manifest.write_text(json.dumps({"tokenizer": tokenizer}))
    data = {"kind": "mmap", "prefix": str(folder / "data")}
    return dataclasses.replace(saved, run={"config": {"data": data}})


def test_the_data_say_which_tokenizer(runs, tmp_path, words):
    saved = load_saved(runs("llama"))
    assert tokenizer_of(saved) == "bytes"
    assert tokenizer_of(saved, str(words)) == str(words)
    made = with_manifest(saved, tmp_path, {"kind": "bytes", "sha256": "0"})
    assert tokenizer_of(made) == "bytes"
    made = with_manifest(
        saved, tmp_path, {"kind": "huggingface", "sha256": "0"}
    )
    assert tokenizer_of(made) is None
    with pytest.raises(ValueError, match="not the one that the data was made"):
        tokenizer_of(made, str(words))
    (tmp_path / "data.manifest.json").unlink()
    assert tokenizer_of(made) is None


def test_tokenizers_go_out_and_come_back(runs, tmp_path, words, pieces):
    to_hf(runs("llama"), tmp_path / "out", tokenizer=str(words))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["eos_token_id"] == 1
    from_hf(tmp_path / "out", tmp_path / "back")
    for folder in (tmp_path / "out", tmp_path / "back"):
        saved = load_saved(folder)
        assert tokenizer_of(saved) == str(folder)
        assert TextTokenizer(str(folder)).encode("a b") == [2, 3]
    with pytest.warns(UserWarning, match="changes white space"):
        to_hf(runs("llama"), tmp_path / "out2", tokenizer=str(pieces))
    text = TextTokenizer(str(tmp_path / "out2"))
    assert text.encode("two") == TextTokenizer(str(pieces)).encode("two")


def test_refuses_a_tokenizer_of_more_tokens(runs, tmp_path, words):
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    tokenizer.add_tokens([f"word{i}" for i in range(300)])
    tokenizer.save(str(words / "tokenizer.json"))
    with pytest.raises(ValueError, match="305 tokens, the model 256"):
        to_hf(runs("llama"), tmp_path / "out", tokenizer=str(words))
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileNotFoundError):
        to_hf(runs("llama"), tmp_path / "out", tokenizer="none.json")


def test_the_end_of_documents_is_that_of_the_data(words, tmp_path, runs):
    (words / "tokenizer_config.json").unlink()
    name = str(words / "tokenizer.json")
    saved = load_saved(runs("llama"))
    identity = find_tokenizer(name, eos_id=3).identity()
    prefix = tmp_path / "data"
    manifest = Path(f"{prefix}.manifest.json")
    manifest.write_text(json.dumps({"tokenizer": identity}))
    run = {"config": {"data": {"kind": "mmap", "prefix": str(prefix)}}}
    saved = dataclasses.replace(saved, run=run)
    assert document_end(saved) == 3
    assert tokenizer_of(saved, name) == name
    out = tmp_path / "out"
    out.mkdir()
    assert write_tokenizer(name, out, saved) == 3
    assert TextTokenizer(name, eos_id=document_end(saved)).prefix_id == 3
