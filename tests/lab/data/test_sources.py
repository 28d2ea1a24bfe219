# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is read is what was written, or is refused by file and line."""

import gzip
import json
import os

import pytest

from paddle_adagc.lab.data import sources
from paddle_adagc.lab.data.config import HubConfig, PrepareConfig
from paddle_adagc.lab.data.encode import read_lines


@pytest.mark.parametrize("name", ["c.jsonl", "c.json", "c.jsonl.gz"])
def test_json_lines(tmp_path, documents, to_jsonl, run, read_texts, name):
    content = to_jsonl(documents)
    is_compressed = name.endswith(".gz")
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    manifest = run(path)
    assert read_texts() == documents
    assert manifest["train"]["num_documents"] == len(documents)
    num_bytes = sum(len(text.encode()) for text in documents)
    assert manifest["num_text_bytes"] == num_bytes
    assert manifest["train"]["num_tokens"] == num_bytes + len(documents)


def test_lines_and_whole_files(tmp_path, run, read_texts):
    text = "one\r\n  two \u2028 2\n\n\nthree"
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    expected = ["one", "  two \u2028 2", "three"]
    run(tmp_path / "a.txt", output="lines")
    assert read_texts("lines") == expected
    run(tmp_path / "a.txt", output="text", text_format="text")
    assert read_texts("text") == [text]


def test_a_folder_is_read_by_name(tmp_path, run, read_texts):
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "1.txt").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / "empty.txt").write_text("")
    (folder / ".hidden.xyz").write_text("no")
    manifest = run(folder)
    assert read_texts() == ["first", "second"]
    assert [i["size"] for i in manifest["inputs"]] == [5, 6, 0]


def test_documents_without_tokens_are_left_out(tmp_path, run, read_texts):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n\n{"text": "x"}\n  \n{"text": ""}')
    assert run(path)["num_empty"] == 2
    assert read_texts() == ["x"]


GOOD = '{"text": "good"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "invalid JSON at column 13"),
        ("{'text': 'a'}", "invalid JSON at column 2"),
        ("[" * 100_000, "recursion"),
        ('["text"]', r"not a JSON object: \[\"text\"\]"),
        ('{"body": "a", "b": 1}', "no field 'text' .fields: 'body', 'b'."),
        ('{"text": 7}', "field 'text' is no string: 7"),
        ('{"text": null}', "field 'text' is no string: null"),
        (b'{"text": "caf\xe9"}', "byte 14 .0xe9. is not UTF-8"),
        ('{"text": "\\ud83d"}', "character 1 .* half of a pair"),
        ('{"text": "a\\u0000"}', "character 2 is .*the token that ends"),
    ],
)
def test_a_bad_line_is_named(tmp_path, run, read_texts, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD.encode() * 300 + line + b"\n" + GOOD.encode())
    with pytest.raises(ValueError, match=rf"bad\.jsonl, line 301: .*{message}"):
        run(path)
    assert not list(tmp_path.glob("out.[bi]*"))
    manifest = run(path, output="skipped", on_error="skip")
    assert manifest["num_bad"] == len(manifest["bad"]) == 1
    assert "line 301: " in manifest["bad"][0]
    assert read_texts("skipped") == ["good"] * 301


def test_the_first_of_several_bad_lines_is_named(tmp_path, run):
    path = tmp_path / "bad.jsonl"
    path.write_text((GOOD * 150 + "{}\n") * 4)
    for workers in (1, 3):
        with pytest.raises(ValueError, match="line 151:"):
            run(path, num_workers=workers)


def test_a_damaged_gzip_file_is_named(tmp_path, run, to_jsonl, documents):
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(to_jsonl(documents))[:-20])
    with pytest.raises(
        ValueError, match=r"cut.jsonl.gz, line 400: not a complete gzip"
    ):
        run(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="Not a gzipped file"):
        run(path, output="other")


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 50_000)
    path = tmp_path / "long.txt"
    path.write_text("short\n" + "x" * 100_000)
    for text_format, line in (("lines", 2), ("text", 1)):
        (source,) = sources.find_files([str(path)], text_format)
        *_, last = read_lines(source)
        assert last["line"] == line
        assert "more than 50,000 bytes" in last["fault"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a.parquet", ValueError, "the ending says no format"),
        ("gone.jsonl", FileNotFoundError, "is not a file"),
        ("empty", FileNotFoundError, "has no files"),
    ],
)
def test_an_unusable_input_is_named(tmp_path, run, name, error, message):
    (tmp_path / "a.parquet").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=f"{name}.* {message}"):
        run(tmp_path / name)


def test_no_documents_is_an_error(tmp_path, run):
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="no documents for train"):
        run(tmp_path / "a.txt")


@pytest.fixture
def hub_folder(tmp_path, documents, monkeypatch):
    """Three files like C4's, with a field that is not text."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "c4"
    folder.mkdir()
    for shard in range(3):
        lines = "".join(
            json.dumps({"text": t, "timestamp": "2019-04-25T12:57:54Z"}) + "\n"
            for t in documents[shard * 100 : shard * 100 + 100]
        )
        path = folder / f"c4-train.0000{shard}-of-00003.json.gz"
        path.write_bytes(gzip.compress(lines.encode()))
    return folder


def test_streamed_datasets(hub_folder, documents, run, read_texts):
    run(hub=HubConfig(path=str(hub_folder)))
    assert read_texts() == documents[:300]
    manifest = run(
        hub=HubConfig(path=str(hub_folder), max_shards=2), output="2"
    )
    assert read_texts("2") == documents[:200]
    first = manifest["inputs"][0]
    assert "c4-train.00000-of-00003" in first["origin"]
    assert run(hub=HubConfig(path=str(hub_folder), max_shards=2), output="2")


def test_a_streamed_example_without_text_is_named(hub_folder, run):
    with pytest.raises(
        ValueError, match=r"c4-train.00000.*, line 1: no field 'body'"
    ):
        run(hub=HubConfig(path=str(hub_folder)), text_field="body")
    with pytest.raises(ValueError, match="field 'timestamp' is no string"):
        run(
            hub=HubConfig(path=str(hub_folder)),
            text_field="timestamp",
            output="2",
        )


def test_a_damaged_streamed_file_is_named(hub_folder, run):
    path = hub_folder / "c4-train.00001-of-00003.json.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": \n'))
    with pytest.raises(ValueError, match=r"c4-train\.00001.*after example"):
        run(hub=HubConfig(path=str(hub_folder)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inputs": ()}, "give local files or a dataset of the hub"),
        ({"output": "a.bin"}, "output: 'a.bin'"),
        ({"text_format": "xml"}, "text_format must be one of"),
        ({"on_error": "stp"}, "did you mean 'stop'"),
        (
            {"validation_fraction": 1.0},
            "validation_fraction must be less than 1, got 1.0",
        ),
        ({"num_workers": 0}, "num_workers must be at least 1"),
    ],
)
def test_a_bad_setting_is_named(values, message):
    good = {"inputs": ("a.jsonl",), "output": "a", "tokenizer": "bytes"}
    with pytest.raises(ValueError, match=message):
        PrepareConfig(**{**good, **values})


def test_an_emptied_gzip_file_is_named(tmp_path, run):
    (tmp_path / "a.jsonl.gz").touch()
    with pytest.raises(
        ValueError, match=r"a\.jsonl\.gz, line 1: not a complete"
    ):
        run(tmp_path / "a.jsonl.gz")


def test_the_output_is_no_input(tmp_path, run, read_texts):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"one\ntwo\n")
    (folder / "b.txt").write_bytes(b"three\n\xff\n")
    with pytest.raises(ValueError, match=r"b\.txt, line 2"):
        run(folder, output="texts/out")
    assert (folder / "out.parts").is_dir()
    run(folder, output="texts/out", on_error="skip")
    assert read_texts("texts/out") == ["one", "two", "three"]
    run(folder, output="texts/out", on_error="skip")  # has all of it


def test_another_file_of_the_same_size_and_time_is_another(tmp_path, run):
    for name, text in (("x.txt", "one\n"), ("y.txt", "two\n")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (10**9, 10**9))
    run(tmp_path / "x.txt")
    with pytest.raises(FileExistsError, match=r"y\.txt, is not .*x\.txt"):
        run(tmp_path / "y.txt")


def test_a_loss_mask_that_is_left_over_is_named(tmp_path, run):
    (tmp_path / "x.txt").write_text("one\n")
    (tmp_path / "out.lsm").write_bytes(b"\0" * 4)
    with pytest.raises(FileExistsError, match=r"out\.lsm exist without"):
        run(tmp_path / "x.txt")
