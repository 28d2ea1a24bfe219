# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.data.indexed import IndexedTokens
from indexed import write_indexed_dataset
from paddlenlp.data.indexed_dataset import MMapIndexedDataset, make_builder

DOCUMENTS = [[5, 6, 7], [8], [9, 1, 2, 3], [4, 4]]


@pytest.fixture
def prefix(tmp_path):
    path = str(tmp_path / "new" / "tokens")
    write_indexed_dataset(path, DOCUMENTS, vocab_size=10)
    return path


def test_what_is_written_is_read(prefix):
    source = IndexedTokens(prefix)
    assert source.num_tokens == 10
    assert source.boundaries.tolist() == [0, 3, 4, 8, 10]
    for number, document in enumerate(DOCUMENTS):
        part = source.documents(number, number + 1)
        assert part.tolist() == document
    assert source.documents(1, 3).tolist() == [8, 9, 1, 2, 3]
    paddlenlps = MMapIndexedDataset(prefix, skip_warmup=True)
    assert [paddlenlps[i].tolist() for i in range(4)] == DOCUMENTS
    assert paddlenlps.doc_idx.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, np.uint16), (65_499, np.uint16), (65_500, np.int32)],
)
def test_the_dtype_follows_the_vocabulary(tmp_path, vocab_size, dtype):
    path = str(tmp_path / "tokens")
    last = vocab_size - 1
    write_indexed_dataset(path, [[0, last], [1]], vocab_size=vocab_size)
    tokens = IndexedTokens(path).documents(0, 2)
    assert tokens.dtype == dtype
    assert tokens.tolist() == [0, last, 1]


def test_documents_of_several_sentences_stay_whole(tmp_path):
    path = str(tmp_path / "sentences")
    builder = make_builder(path + ".bin", "mmap", np.uint16)
    for document in ([[1, 2], [3]], [[4], [5, 6]]):
        for sentence in document:
            builder.add_item(sentence)
        builder.end_document()
    builder.finalize(path + ".idx")
    source = IndexedTokens(path)
    assert source.boundaries.tolist() == [0, 3, 6]
    train, held_out = source.split(0.5)
    assert train.tolist() == [1, 2, 3]
    assert held_out.tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("fraction", "num_tokens"), [(0.25, 8), (0.5, 4), (0.01, 8), (0.99, 3)]
)
def test_the_last_documents_are_held_out(prefix, fraction, num_tokens):
    train, validation = IndexedTokens(prefix).split(fraction)
    tokens = [token for document in DOCUMENTS for token in document]
    assert train.tolist() == tokens[:num_tokens]
    assert validation.tolist() == tokens[num_tokens:]


def test_the_fingerprint_tells_datasets_apart(prefix, tmp_path):
    ours = IndexedTokens(prefix).fingerprint()
    assert (ours["num_documents"], ours["num_tokens"]) == (4, 10)
    other = str(tmp_path / "other")
    changed = [[token + 1 for token in document] for document in DOCUMENTS]
    write_indexed_dataset(other, changed, vocab_size=20)
    theirs = IndexedTokens(other).fingerprint()
    assert theirs["sha256"] == ours["sha256"]
    assert theirs["sampled_sha256"] != ours["sampled_sha256"]


def test_a_single_document_cannot_be_split(prefix):
    write_indexed_dataset(prefix, [[1, 2, 3]], vocab_size=10)
    with pytest.raises(ValueError, match="has 1 documents"):
        IndexedTokens(prefix).split(0.5)


@pytest.mark.parametrize(
    ("ending", "start", "stop", "content", "message"),
    [
        (".bin", -2, None, b"", "bin has 18 bytes, but .* 20"),
        (".bin", 0, None, b"", "bin is empty"),
        (".idx", -40, None, b"", "idx is cut short"),
        (".idx", 0, 8, b"TNTIDX\0\0", 'idx starts .* "mmap" implementation'),
        (".idx", 9, 17, (2).to_bytes(8, "little"), "idx is cut short, or no"),
        (".idx", -8, None, (10**6).to_bytes(8, "little"), "idx is damaged"),
    ],
)
def test_damaged_files_are_named(prefix, ending, start, stop, content, message):
    path = Path(prefix + ending)
    changed = bytearray(path.read_bytes())
    changed[start:stop] = content
    path.write_bytes(changed)
    with pytest.raises(ValueError, match=rf"tokens\.{message}"):
        IndexedTokens(prefix)
    path.unlink()
    message = rf"tokens\{ending} not found.*prepare_data\.py"
    with pytest.raises(FileNotFoundError, match=message):
        IndexedTokens(prefix)
