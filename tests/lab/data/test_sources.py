# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is read is what was written, or is refused by file and line."""

import gzip
import json

import pytest
from adagc_lab.data import sources


@pytest.mark.parametrize("name", ["c.json", "c.jsonl.gz"])
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
    (folder / "a.jsonl").write_text('{"text": ""}\n\n{"text": "first"}\n  ')
    (folder / "empty.txt").write_text("")
    (folder / ".hidden.xyz").write_text("no")
    manifest = run(folder)
    assert read_texts() == ["first", "second"]
    assert [i["size"] for i in manifest["inputs"]] == [34, 6, 0]
    assert manifest["num_empty"] == 1
    run(folder / "b", folder / "b", output="twice")
    assert read_texts("twice") == ["second", "second"]


GOOD = '{"text": "good"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "invalid JSON at column 13"),
        ("hello", "in 'hello': one .* .--format lines reads a document a line"),
        ("[" * 100_000, "recursion"),
        (
            '["text"]',
            r"not a JSON object: '\[\"text\"\]'; write {\"text\": \.\.\.}",
        ),
        (
            '{"body": "a", "b": 1}',
            "no field 'text' .fields: 'body', 'b'.: give --text-field body",
        ),
        ('{"text": 7}', "field 'text' is no string: 7"),
        (b'{"text": "caf\xe9"}', "byte 14 .0xe9. is not UTF-8"),
        ('{"text": "\\ud83d"}', "character 1 .* half of a pair"),
        ('{"text": "a\\u0000"}', "holds the token that ends"),
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


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_of_several_bad_lines_is_named(tmp_path, run, workers):
    path = tmp_path / "bad.jsonl"
    path.write_text((GOOD * 150 + "{}\n") * 4)
    with pytest.raises(ValueError, match="line 151:"):
        run(path, path, path, num_workers=workers)


def test_a_damaged_gzip_file_is_named(tmp_path, run, to_jsonl, documents):
    path = tmp_path / "cut.jsonl.gz"
    for content, message in (
        (gzip.compress(to_jsonl(documents))[:-20], "line 400: not a complete"),
        (b"no gzip", "Not a gzipped file"),
        (b"", "line 1: not a complete"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"cut.jsonl.gz, .*{message}"):
            run(path)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 50_000)
    path = tmp_path / "long.txt"
    path.write_text("short\n" + "x" * 100_000)
    for text_format, line in (("lines", 2), ("text", 1)):
        (source,) = sources.find_files([str(path)], text_format)
        last = [*sources.read_lines(source)][-1]
        assert last[0].endswith(f"long.txt, line {line}")
        with pytest.raises(ValueError, match="more than 50,000 bytes"):
            sources.parse_text(last[1], text_format, "text")


def test_a_first_line_that_is_too_long_after_a_byte_order_mark(
    tmp_path, run, monkeypatch
):
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 5_000)
    path = tmp_path / "long.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"y" * 17_000 + b"\nshort")
    with pytest.raises(ValueError, match="line 1: more than 5,000 bytes"):
        run(path)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_document_that_is_too_long_can_be_left_out(
    tmp_path, run, monkeypatch, ending
):
    """The lines around it stay; one of just the longest size, too."""
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 5_000)
    most = json.dumps({"text": "x" * (5_000 - len('{"text": ""}'))})
    path = tmp_path / f"long.{ending}"
    lines = [GOOD, json.dumps({"text": "y" * 17_000}) + "\n", most + "\n", GOOD]
    write = gzip.compress if ending.endswith("gz") else bytes
    path.write_bytes(write("".join(lines).encode()))
    with pytest.raises(ValueError, match="line 2: more than 5,000 bytes"):
        run(path)
    manifest = run(path, on_error="skip")
    assert manifest["num_bad"] == 1
    assert manifest["train"]["num_documents"] == 3


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a.parquet", ValueError, "a.parquet.* the ending says no format"),
        ("gone.jsonl", FileNotFoundError, "gone.jsonl.* is not a file"),
        ("empty", FileNotFoundError, "empty.* has no files"),
        ("a.txt", ValueError, "no documents for .*: 0 are bad, 0 have no"),
        (
            "array.json",
            ValueError,
            "array.json, line 1: a JSON array, .*jq -c",
        ),
        ("lines.json", ValueError, "lines.json, line 1: a JSON array, where"),
        ("bad.jsonl", ValueError, "2 are bad, .*bad.jsonl, line 1: no field"),
    ],
)
def test_an_unusable_input_is_named(tmp_path, run, name, error, message):
    (tmp_path / "a.parquet").touch()
    (tmp_path / "a.txt").write_text("\n\n")
    (tmp_path / "bad.jsonl").write_text('{"body": "a"}\n' * 2)
    (tmp_path / "array.json").write_text(f"[{GOOD.strip()}]")
    (tmp_path / "lines.json").write_text(f"[\n{GOOD.strip()},\n{GOOD}]\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        run(tmp_path / name, on_error="skip")


def test_streamed_datasets(tmp_path, documents, run, read_texts, monkeypatch):
    """Three files like C4's, with a field that is not text."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "c4").mkdir()
    files = [
        tmp_path / f"c4/c4-train.0000{n}-of-00003.json.gz" for n in range(3)
    ]
    for number, file in enumerate(files):
        lines = [
            json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z"})
            for text in documents[number * 100 : number * 100 + 100]
        ]
        file.write_bytes(gzip.compress("\n".join(lines).encode()))
    hub = {"hub": str(tmp_path / "c4")}
    manifest = run(**hub)
    assert read_texts() == documents[:300]
    assert "c4-train.00000-of-00003" in manifest["inputs"][0]["origin"]
    assert run(**hub) == manifest
    message = r"c4-train.00000.*, line 1: no field 'body'"
    with pytest.raises(ValueError, match=message):
        run(text_field="body", output="body", **hub)
    files[1].write_bytes(gzip.compress(b'{"text": "a"}\n{"text": \n'))
    with pytest.raises(FileExistsError, match=r"input 1 was .*c4-train\.00000"):
        run(**hub)
    with pytest.raises(ValueError, match=r"c4-train\.00001.*after example"):
        run(output="cut", **hub)
