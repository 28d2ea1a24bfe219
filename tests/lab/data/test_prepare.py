# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From files to PaddleNLP's memory-mapped dataset, by the command."""

import gzip
import json

import numpy as np
import pytest
from adagc_lab.data.text import IndexedTokens
from byte_tokenizer import byte_tokenizer
from lab.train.runs import proxy_values, run
from pages import load_tool

tool = load_tool("prepare_data")

TEXTS = [f"document {n}: " + "früh 東京 🙂\n" * (n % 7) for n in range(300)]


@pytest.fixture
def corpus(tmp_path):
    """C4's shape: files of JSON lines, compressed; and one of lines."""
    folder = tmp_path / "c4"
    folder.mkdir()
    for part in range(3):
        rows = [{"text": t, "url": "u"} for t in TEXTS[part::3]]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        with gzip.open(folder / f"c4-train.0000{part}.json.gz", "wt") as file:
            file.write(lines)
    return folder


def prepare(*arguments):
    return tool.main([*map(str, arguments)])


def texts_of(prefix):
    tokens = IndexedTokens(str(prefix)).tokens.astype("uint8").tobytes()
    assert tokens.endswith(b"\0")
    return tokens.decode().split("\0")[:-1]


def test_c4_s_files_become_a_dataset_that_ernie_trains_on(
    corpus, tmp_path, capsys
):
    output = tmp_path / "data/c4"
    options = ("--validation-fraction", 0.3, "--tokenizer", "bytes")
    assert prepare(corpus, "--output", output, *options) == 0
    train, held_out = texts_of(output), texts_of(f"{output}_validation")
    assert f"{output}: {len(train)} documents" in capsys.readouterr().out
    assert sorted(train + held_out) == sorted(TEXTS)
    assert 50 < len(held_out) < 130
    values = proxy_values(
        "ernie_moe",
        tmp_path / "run",
        "model={hidden_size: 32, moe_intermediate_size: 32}",
        "record={tensors: false, moments: false}",
        "data={kind: mmap, seq_length: 16, validation_size: 8}",
        f"data.prefix={output}",
        f"data.validation_prefix={output}_validation",
        "train.max_steps=3",
        "train.save_every=0",
        "train.visualdl=false",
        "clip.t_start=1",
    )
    status, record = run(values)
    assert status == "finished"
    assert np.isfinite(record.loss).all()


def test_what_is_wrong_is_named(corpus, tmp_path, capsys):
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    (tmp_path / "old.idx").touch()
    bytes_of = ("--tokenizer", "bytes")
    for arguments, message in (
        ((tmp_path / "a.csv", *bytes_of), "files end in .json, .jsonl"),
        ((tmp_path / "b.jsonl", *bytes_of), "b.jsonl, line 2: no JSON object"),
        (bytes_of, "give files, or a dataset by --hub"),
        ((corpus, "--tokenizer", "a/b/c"), "there is no tokenizer.json"),
        ((corpus, *bytes_of, "--validation-fraction", 1), "not in [0, 1)"),
        ((corpus, *bytes_of, "--validation-fraction", 1e-9), "no documents f"),
    ):
        assert prepare(*arguments, "--output", tmp_path / "new") == 2
        assert message in capsys.readouterr().err
    assert prepare(corpus, *bytes_of, "--output", tmp_path / "old") == 2
    assert "exists: remove it" in capsys.readouterr().err
    assert not list(tmp_path.glob("new*.idx"))


def test_a_broken_dataset_is_refused(corpus, tmp_path):
    output = tmp_path / "c4"
    prepare(corpus, "--output", output, "--tokenizer", "bytes")
    index = output.with_suffix(".idx")
    whole = index.read_bytes()
    for broken in (whole[:100], b"x" * len(whole)):
        index.write_bytes(broken)
        with pytest.raises(ValueError, match=r"c4\.idx is no index"):
            IndexedTokens(str(output))
    index.write_bytes(whole)
    output.with_suffix(".bin").write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 bytes, but"):
        IndexedTokens(str(output))


def test_tokenizers_of_files(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(ValueError, match="which token ends a document"):
            tool.find_tokenizer(str(name))
    config = {"eos_token": {"content": "\0"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = tool.find_tokenizer(str(tmp_path))
    assert (found.vocab_size, found.eos_id) == (256, 0)
    text = "früh 東京"
    assert list(found.encode([text])[0]) == list(text.encode())
