# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from adagc_lab.data.tokenizers import byte_tokenizer
from adagc_lab.models.hf_files import (
    INDEX,
    SINGLE,
    new_directory,
    read_json,
    read_weights,
    write_weights,
)
from safetensors.numpy import save_file

WEIGHTS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.arange(10, dtype=np.float16),
    "c": np.arange(4).astype(ml_dtypes.bfloat16).reshape(2, 2),
}


def assert_same(found):
    assert found.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, name)


def test_one_file_or_shards_and_an_index(tmp_path):
    write_weights(tmp_path, WEIGHTS, 52)
    assert [path.name for path in tmp_path.iterdir()] == [SINGLE]
    assert_same(read_weights(tmp_path))
    (tmp_path / SINGLE).unlink()
    write_weights(tmp_path, WEIGHTS, 1)
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {*names, INDEX}
    assert_same(read_weights(tmp_path))
    index = read_json(tmp_path / INDEX)
    assert index["metadata"]["total_size"] == 52
    text = (tmp_path / INDEX).read_text()
    (tmp_path / INDEX).write_text(text.replace('"c"', '"d"'))
    with pytest.raises(ValueError, match=r"disagree about \['c', 'd'\]"):
        read_weights(tmp_path)
    (tmp_path / names[-1]).unlink()
    with pytest.raises(FileNotFoundError, match=names[-1]):
        read_weights(tmp_path)


def test_refuses_broken_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds neither"):
        read_weights(tmp_path)
    write_weights(tmp_path, WEIGHTS)
    file = tmp_path / SINGLE
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"model\.safetensors is broken"):
        read_weights(tmp_path)
    index = tmp_path / INDEX
    for content, message in (
        ("{", r"index\.json is not JSON"),
        ("[]", "holds a list"),
        ("{}", "holds no weight_map"),
        ('{"weight_map": {"a": "../a"}}', "names '../a': give the name"),
    ):
        index.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path)


@pytest.mark.parametrize(
    "dtype", ["F8_E4M3", "F8_E5M2", "I8", "U8", "I32", "BOOL"]
)
def test_refuses_quantized_weights_by_name(tmp_path, dtype):
    size = 4 if dtype == "I32" else 1
    about = {"dtype": dtype, "shape": [2], "data_offsets": [0, 2 * size]}
    header = json.dumps({"q_proj.weight": about}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(2 * size)
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"{SINGLE}: q_proj.weight is {dtype}\. Scales .* F16"
    ):
        read_weights(tmp_path)


def test_refuses_matrices_in_paddle_s_layout(tmp_path):
    save_file({"a": WEIGHTS["b"]}, tmp_path / SINGLE, {"format": "np"})
    with pytest.raises(ValueError, match=rf"{SINGLE} has the format 'np'"):
        read_weights(tmp_path)
    save_file({"a": WEIGHTS["b"]}, tmp_path / SINGLE)  # none: transformers' own
    assert [*read_weights(tmp_path)] == ["a"]


def test_a_directory_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "out"
    (tmp_path / ".out.partial").mkdir()  # of a killed call
    (tmp_path / ".out.partial/half").touch()
    target.mkdir()  # empty: may be taken
    failing = pytest.raises(OSError, match="disk full")
    with failing, new_directory(target) as directory:
        (directory / "file").touch()
        raise OSError("disk full")
    assert [*tmp_path.rglob("*")] == [target]
    with new_directory(target) as directory:
        (directory / "whole").touch()
        assert [*target.iterdir()] == []
    assert [*tmp_path.rglob("*")] == [target, target / "whole"]
    for existing in (target, target / "whole"):
        refused = pytest.raises(FileExistsError, match="exists already")
        with refused, new_directory(existing):
            pass
    assert [*tmp_path.rglob("*")] == [target, target / "whole"]


def test_byte_tokenizer_ids_are_the_bytes():
    tokenizer = byte_tokenizer()
    assert sorted(tokenizer.get_vocab().values()) == [*range(256)]
    every_character = "".join(map(chr, [*range(0x250), 0x65E5, 0x1F600]))
    for text in (every_character, "a  b\r\n\t", "\x00", ""):
        ids = tokenizer.encode(text).ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([97, 0, 98]) == "ab"
    assert tokenizer.decode([0xE6, 97]) == "\ufffda"
