# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tar shards in an order from which a run can go on."""

import collections
import dataclasses
import io
import itertools
import json
import logging
import tarfile
from pathlib import Path

import numpy as np
import pytest
from lab.data.tar_shards import (
    GOLDEN,
    encoded_image,
    write_grey_shards,
    write_shard,
)
from paddle.io import DataLoader
from paddlenlp.utils.batch_sampler import DistributedBatchSampler

pytest.importorskip("webdataset")

from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import collate_batch
from adagc_lab.data.image_text import build_image_text_datasets
from adagc_lab.data.images import MEAN, STD, PairFormat
from adagc_lab.data.shards import (
    MAX_CAPTION_BYTES,
    Shard,
    ShardStream,
    find_shards,
    read_samples,
)

COUNTS = (7, 5, 6, 7, 5)
"""Samples of the shards."""
WANTED = PairFormat(
    image_size=8, context_length=10, end_token=318, batch_size=4, num_ranks=1
)


@pytest.fixture
def folder(tmp_path):
    """Shard s holds images of grey 10 s + i."""
    write_grey_shards(tmp_path, COUNTS)
    return tmp_path


def build(folder, num_samples=1000, wanted=(), **fields):
    config = DataConfig(
        kind="webdataset",
        **{
            "shards": str(folder / "{00000..00004}.tar"),
            "tokenizer": str(folder / "tokenizer.json"),
            "shuffle_size": 3,
            "validation_fraction": 0.2,
            "validation_size": 4,
            **fields,
        },
    )
    format_ = dataclasses.replace(WANTED, **dict(wanted))
    return build_image_text_datasets(config, num_samples, format_)


def grey(sample):
    """The number that an image stands for."""
    value = sample["pixel_values"][0].mean() * STD[0] + MEAN[0]
    return round(float(value) * 255)


def test_shards_are_found_and_counted(folder):
    shards = find_shards(str(folder / "{00000..00003}.tar"))
    assert [s.num_samples for s in shards] == [7, 5, 6, 7]
    assert len(find_shards(str(folder / "*.tar"))) == 5
    stats = folder / "00001_stats.json"
    stats.write_text(json.dumps({"successes": 4}))
    assert find_shards(str(folder / "00001.tar"))[0].num_samples == 4
    for facts in ("{}", "2", "no JSON", "[" * 9999):
        stats.write_text(facts)
        with pytest.raises(ValueError, match=r"00001_stats\.json: .* remove"):
            find_shards(str(folder / "00001.tar"))
    (folder / "broken.tar").write_bytes(b"no tar" * 200)
    write_shard(folder / "empty.tar", [])
    for name, message in (
        ("nothing*.tar", r"no shards .*nothing"),
        ("broken.tar", r"broken\.tar is no tar file"),
        ("empty.tar", r"empty\.tar holds no samples"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            find_shards(str(folder / name))


@pytest.mark.parametrize(
    ("counted", "message"), [(4, "more than 4 samples, 4"), (9, "5 samples, 9")]
)
def test_a_shard_with_other_samples_than_counted_is_named(
    folder, counted, message
):
    (stream,) = streams([Shard(str(folder / "00001.tar"), counted)])
    stream.chunk(0)
    with pytest.raises(ValueError, match=rf"00001\.tar has {message} were"):
        stream.chunk(3)


def member(size=0, **sparse):
    found = tarfile.TarInfo("a.txt")
    found.size = size
    found.pax_headers = {f"GNU.sparse.{k}": v for k, v in sparse.items()}
    return found


def tar(*members, mode="w"):
    """The content of a tar file."""
    file = io.BytesIO()
    with tarfile.open(None, mode, file, format=tarfile.PAX_FORMAT) as archive:
        for one in members:
            content = b"1\n0\n1\n".ljust(one.size, b"\0")
            archive.addfile(one, io.BytesIO(content))
    return file.getvalue()


TWICE = tar(member(), member())
# 1 KiB that says that it unpacks to 2 GB.
SPARSE = {
    "major": "1",
    "minor": "0",
    "name": "a.txt",
    "realsize": "2" + "0" * 9,
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar(member(1024, **SPARSE)), "'a.txt' is sparse"),
        (member(2 * 10**9).tobuf() + b"x" * 5000, "claims 2,000,000,000 bytes"),
        (TWICE, "duplicate file name"),
        (tar(member(), mode="w:gz"), "or compressed"),
        (TWICE[:636] + b"x" + TWICE[637:], "no header at byte 512"),
    ],
    ids=["sparse", "claim", "twice", "compressed", "header"],
)
def test_hostile_shards_are_refused_by_name(content, message, tmp_path):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.tar is no tar.*{message}"):
        [*read_samples(tmp_path / "a.tar")]


def test_name_of_a_shard_is_never_a_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "pipe:touch hacked"
    Path(name).write_bytes(next(folder.glob("*.tar")).read_bytes())
    (shard,) = find_shards("pipe*")
    assert [*read_samples(shard.path)]
    assert not Path("hacked").exists()


@pytest.fixture
def shards(folder):
    return find_shards(str(folder / "*.tar"))


def streams(shards, count=1, seed=0):
    options = {"seed": seed, "shuffle_size": 3}
    return [ShardStream(shards, i, count, **options) for i in range(count)]


def key_at(stream, position):
    chunk, place = stream.chunk(position)
    return chunk[place]["__key__"]


def test_streams_share_an_epoch(shards):
    keys = []
    for stream in streams(shards, 2):
        mine = [key_at(stream, i) for i in range(20)]
        keys += mine[: next(n for n in range(20) if mine[n] in mine[:n])]
    assert len(keys) == len(set(keys)) == sum(COUNTS)


def test_what_stands_at_a_position_does_not_depend_on_how_one_got_there(shards):
    """Each epoch has every sample once, in another order."""
    (walked,) = streams(shards)
    total = sum(COUNTS)
    keys = [key_at(walked, i) for i in range(75)]
    first, second = keys[:total], keys[total : 2 * total]
    assert len(set(first)) == total
    assert sorted(first) == sorted(second)
    assert first not in (second, sorted(first))
    for start in (1, 29, 30, 44, 74):
        (fresh,) = streams(shards)
        assert [key_at(fresh, i) for i in range(start, 75)] == keys[start:]
    for i in (50, 3, 70, 0):
        assert key_at(walked, i) == keys[i]
    (other,) = streams(shards, seed=1)
    assert [key_at(other, i) for i in range(total)] != first


def test_a_shard_is_read_once_from_start_to_end(shards, monkeypatch):
    opened = collections.Counter()

    def counting(path):
        opened[path] += 1
        return read_samples(path)

    monkeypatch.setattr("adagc_lab.data.shards.read_samples", counting)
    (stream,) = streams(shards)
    for i in range(sum(COUNTS)):
        stream.chunk(i)
    assert set(opened.values()) == {1}


def test_training_and_validation_pairs(folder):
    train, validation = build(folder)
    assert (len(train), len(validation)) == (1000, 4)
    assert [grey(validation[i]) for i in range(4)] == [40, 41, 42, 43]
    greys = {grey(train[i]) for i in range(25)}
    assert greys == {
        10 * s + i for s, count in enumerate(COUNTS[:4]) for i in range(count)
    }
    assert train[0]["input_ids"].tolist()[5:] == [318, 0, 0, 0, 0]
    assert len([*validation]) == 4
    for dataset, index in ((train, 1000), (train, -1), (validation, 4)):
        with pytest.raises(IndexError, match=f"sample {index} of"):
            dataset[index]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_ranks_and_workers_read_streams_of_their_own(folder, num_workers):
    """Two ranks' loaders, resumed in the middle as PaddleNLP resumes."""
    train, _ = build(folder, 96, {"num_ranks": 2}, num_workers=num_workers)

    def batches(rank, consumed, count):
        sampler = DistributedBatchSampler(
            train, 4, num_replicas=2, rank=rank, drop_last=True
        )
        sampler.set_epoch(consumed_samples=consumed)
        loader = DataLoader(
            train,
            batch_sampler=sampler,
            collate_fn=collate_batch,
            num_workers=num_workers,
        )
        return [
            np.array(batch["pixel_values"])
            for batch in itertools.islice(loader, count)
        ]

    per_rank = [batches(rank, 0, 6) for rank in (0, 1)]
    assert (per_rank[0][0] != per_rank[1][0]).any()
    for rank in (0, 1):
        resumed = batches(rank, 3 * 8, 3)
        np.testing.assert_array_equal(resumed, per_rank[rank][3:])


def test_pairs_that_cannot_be_read_are_left_out(folder, caplog):
    good = {"jpg": encoded_image(200, "JPEG"), "txt": b"dogs"}
    cut = {**good, "jpg": good["jpg"][:300]}
    with_json = {
        "webp": encoded_image(100, "WEBP"),
        "json": json.dumps({"caption": "dogs"}).encode(),
    }
    wrong = {**with_json, "json": b"[]"}
    null = {**with_json, "json": b'{"caption": null}'}
    long = {**good, "txt": b"a" * (MAX_CAPTION_BYTES + 1)}
    large = {**good, "jpg": encoded_image(0, "PNG", (8000, 8000))}
    write_shard(
        folder / "00000.tar",
        [
            *(cut, good, {"txt": b"dogs"}, {"jpg": good["jpg"]}, with_json),
            *(wrong, null, long, large),
        ],
    )
    for number in (1, 4):
        write_shard(folder / f"0000{number}.tar", [{"txt": b"dogs"}, good])
    shards = {"shards": str(folder / "{00000,00004}.tar"), "validation_size": 2}
    train, validation = build(folder, **shards, shuffle_size=9)
    with caplog.at_level(logging.WARNING):
        greys = [grey(train[i]) for i in range(9)]
        assert grey(validation[0]) == 200
    assert set(greys) == {200, 100}
    assert "000000000 in" in caplog.text
    assert "no image that can be read" in caplog.text
    assert "a caption of 1,048,577 bytes" in caplog.text
    assert "8000 x 8000 pixels" in caplog.text
    assert "the caption is None" in caplog.text
    assert "000040000 in" in caplog.text
    write_shard(folder / "00000.tar", [{"txt": b"dogs"}] * 3)
    train, _ = build(folder, **shards)
    with pytest.raises(ValueError, match="none of 3 pairs"):
        train[0]


@pytest.mark.parametrize(
    ("fields", "wanted", "message"),
    [
        ({"validation_size": 6}, {}, "validation_size is 6.* have 5 pairs"),
        ({"validation_fraction": 0.9}, {}, "give at least 2"),
        ({}, {"end_token": 299}, "vocab_size=300.* with 318; set it to 319"),
        ({"tokenizer": f"{GOLDEN}/tokenizer.json"}, {}, "with 1; give CLIP's"),
        ({"num_workers": 3}, {"num_ranks": 2}, "4 shards for 6 streams"),
    ],
)
def test_data_that_does_not_fit_is_refused(folder, fields, wanted, message):
    with pytest.raises(ValueError, match=message):
        build(folder, wanted=wanted, **fields)
