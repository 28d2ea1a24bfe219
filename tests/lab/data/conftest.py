# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small corpus, and tokenizers trained on it."""

import io
import json
import random

import pytest
from adagc_lab.data.config import PrepareConfig
from adagc_lab.data.indexed import IndexedTokens
from adagc_lab.data.prepare import prepare

WORDS = ["ada", "clips", "every", "gradient", "früh", "東京", "🙂", "spike"]


@pytest.fixture(scope="session")
def documents():
    """400 different texts, with line ends, of 30 to 3,000 characters."""
    draw = random.Random(0)
    return [
        f"{number} " + "\n".join(draw.choices(WORDS, k=draw.randint(5, 500)))
        for number in range(400)
    ]


@pytest.fixture(scope="session")
def to_jsonl():
    def convert(documents):
        lines = (
            json.dumps({"url": n, "text": text}, ensure_ascii=n % 2 == 0)
            for n, text in enumerate(documents)
        )
        return "".join(line + "\n" for line in lines).encode()

    return convert


@pytest.fixture
def jsonl(tmp_path, documents, to_jsonl):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(to_jsonl(documents))
    return path


@pytest.fixture
def run(tmp_path):
    """Prepare with one worker; gives the manifest."""

    def run_prepare(*inputs, output="out", **values):
        values = {"tokenizer": "bytes", "num_workers": 1, **values}
        config = PrepareConfig(
            inputs=tuple(map(str, inputs)),
            output=str(tmp_path / output),
            **values,
        )
        return prepare(config)[0]

    return run_prepare


@pytest.fixture
def read_texts(tmp_path):
    """The documents of a dataset of bytes."""

    def read(output="out"):
        tokens = IndexedTokens(str(tmp_path / output)).all()
        text = tokens.astype("uint8").tobytes().decode()
        assert text.endswith("\0")
        return text.split("\0")[:-1]

    return read


@pytest.fixture
def read_files(tmp_path):
    """Content of a dataset's files by their ending."""

    def read(output="out"):
        return {
            path.name.removeprefix(output): path.read_bytes()
            for path in tmp_path.glob(f"{output}*")
            if path.suffix in (".bin", ".idx")
        }

    return read


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory, documents):
    """A byte-level BPE tokenizer that cuts after three tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(documents, trainer)
    model.enable_truncation(3)
    folder = tmp_path_factory.mktemp("bpe")
    model.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory, documents):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents),
        model_writer=model,
        vocab_size=80,
        hard_vocab_limit=False,
        max_sentence_length=10_000,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path
