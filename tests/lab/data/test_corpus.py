# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from adagc_lab.data.corpus import (
    END_OF_DOCUMENT,
    Corpus,
    load_stdlib_corpus,
)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "b.py").write_bytes(b"b = 1\n")
    (tmp_path / "pkg" / "a.py").write_bytes("ä = 2\n".encode())
    (tmp_path / "pkg" / "same_as_b.py").write_bytes(b"b = 1\n")
    (tmp_path / "pkg" / "__init__.py").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"no")
    for name in ("site-packages", "dist-packages", "__pycache__"):
        (tmp_path / "pkg" / name).mkdir()
        (tmp_path / "pkg" / name / "c.py").write_bytes(b"no")
    return tmp_path


def test_a_directory_becomes_its_files_bytes(directory):
    corpus = Corpus.from_directory(directory)
    assert [*corpus.documents] == ["b.py", "pkg/a.py"]
    assert corpus.tokens.tobytes() == "b = 1\n\x00ä = 2\n\x00".encode()
    assert corpus.tokens.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        corpus.tokens[0] = 1


def test_the_fingerprint_tells_content_and_names_apart(directory):
    found = [Corpus.from_directory(directory).fingerprint()]
    (directory / "b.py").write_bytes(b"b = 3\n")
    (directory / "pkg" / "same_as_b.py").unlink()
    found.append(Corpus.from_directory(directory).fingerprint())
    (directory / "b.py").rename(directory / "c.py")
    found.append(Corpus.from_directory(directory).fingerprint())
    assert [(x["num_files"], x["num_bytes"]) for x in found] == [(2, 13)] * 3
    assert len({x["sha256"] for x in found}) == 3
    for file in directory.rglob("*.py"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=str(directory)):
        Corpus.from_directory(directory)


def test_a_split_of_the_standard_library_shares_and_loses_no_document():
    corpus = load_stdlib_corpus()
    assert len(corpus.tokens) > 5e6
    assert "dataclasses.py" in corpus.documents
    assert load_stdlib_corpus() is corpus
    num_ends = np.count_nonzero(corpus.tokens == END_OF_DOCUMENT)
    assert num_ends == len(corpus.documents)
    train, held_out = corpus.split(0.1, seed=3)
    assert not train.documents.keys() & held_out.documents.keys()
    assert {**train.documents, **held_out.documents} == corpus.documents
    assert [*held_out.documents] == sorted(held_out.documents)
    assert len(train.tokens) + len(held_out.tokens) == len(corpus.tokens)
    assert 0.1 <= len(held_out.tokens) / len(corpus.tokens) < 0.2


def test_a_new_file_does_not_move_the_others():
    documents = {f"f{n}.py": b"%02d" % n * 50 for n in range(51)}
    after = Corpus(documents).split(0.5, seed=0)[1]
    del documents["f50.py"]
    before = Corpus(documents).split(0.5, seed=0)[1]
    assert len(before.documents.keys() ^ after.documents.keys()) <= 2
    with pytest.raises(ValueError, match="of 2 documents leaves none"):
        Corpus({"a": b"a", "b": b"b"}).split(0.9, seed=0)
