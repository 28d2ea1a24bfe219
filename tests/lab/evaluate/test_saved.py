# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoders and their tokenizers go out and come back."""

import dataclasses
import functools
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.checksums import sealed
from adagc_lab.data.tokenizers import find_tokenizer
from adagc_lab.evaluate import saved as saved_module
from adagc_lab.evaluate.saved import (
    build_decoder,
    from_hf,
    load_saved,
    to_hf,
)
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.hf_files import read_json, write_weights
from lab.models.tiny import TINY
from safetensors.numpy import load_file, save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers_twin import torch_and_transformers


def bits(saved):
    return {k: (x.dtype, x.shape, x.tobytes()) for k, x in saved.state.items()}


def in_bfloat16(saved, folder):
    """A checkpoint of the same model in bfloat16, but for its biases."""
    folder.mkdir()
    saved.config.save_pretrained(str(folder))
    state = {
        name: paddle.to_tensor(array).astype(
            "float32" if "bias" in name else "bfloat16"
        )
        for name, array in saved.state.items()
    }
    paddle.save(state, str(folder / "model_state.pdparams"))
    return folder


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((name, "float32") for name in TINY), ("ernie4_5_moe", "bfloat16")],
)
def test_a_trained_decoder_goes_out_and_comes_back_bit_for_bit(
    runs, tmp_path, family, dtype
):
    source = runs(family)
    if dtype == "bfloat16":
        source = in_bfloat16(load_saved(source), tmp_path / "low")
    line = to_hf(source, tmp_path / "out")
    config = read_json(tmp_path / "out/config.json")
    assert (config["model_type"], config["torch_dtype"]) == (family, dtype)
    from_hf(tmp_path / "out", tmp_path / "back")
    trained, back = load_saved(source), load_saved(tmp_path / "back")
    assert bits(trained) == bits(back)
    if family == "ernie4_5_moe":
        bias = trained.state["model.layers.1.mlp.e_score_correction_bias"]
        assert np.count_nonzero(bias) > 0
        assert bias.dtype == np.float32
    assert trained.state["model.norm.weight"].dtype.name == dtype
    if dtype == "bfloat16":
        return
    assert trained.step == 4
    assert "step 4" in line
    loaded = DecoderForCausalLM.from_pretrained(str(tmp_path / "back"))
    loaded.eval()
    ids = paddle.arange(20).reshape([2, 10])
    np.testing.assert_array_equal(
        loaded(ids).numpy(), build_decoder(trained)(ids).numpy()
    )


@pytest.mark.parametrize("family", TINY)
def test_transformers_gives_equal_logits(runs, tmp_path, monkeypatch, family):
    torch, transformers = torch_and_transformers()
    in_shards = functools.partial(write_weights, max_shard_bytes=20_000)
    monkeypatch.setattr(saved_module, "write_weights", in_shards)
    to_hf(runs(family), tmp_path / "out")
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert (
        type(theirs).__name__
        == (read_json(tmp_path / "out/config.json")["architectures"][0])
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    ours = build_decoder(load_saved(runs(family)))
    ids = np.random.default_rng(0).integers(0, 256, [3, 40])
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(ids)).logits.numpy()
    logits = ours(paddle.to_tensor(ids)).numpy()
    assert expected.std() > 0.3
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "def f():\n\treturn 'ä Ā 日本\x00'  "
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == 0


def test_newest_complete_checkpoint_counts_and_a_broken_one_stays(
    runs, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(runs("llama"), run)
    (run / "checkpoint-4/complete.json").unlink()
    assert load_saved(run).step == 2
    assert (run / "checkpoint-4/model_state.pdparams").exists()
    (run / "checkpoint-2/complete.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.save_every"):
        load_saved(run)


def test_refuses_what_is_no_model(runs, tmp_path):
    config, weights = (
        tmp_path / name for name in ("config.json", "model_state.pdparams")
    )
    whole = (runs("llama") / "checkpoint-4/model_state.pdparams").read_bytes()
    own = {"model_type": DecoderConfig.model_type, "hidden_size": 16}

    def refused(error, message):
        with pytest.raises(error, match=message):
            load_saved(tmp_path)

    refused(FileNotFoundError, r"neither run\.json")
    config.write_text(json.dumps({"model_type": "gpt2"}))
    refused(ValueError, "model_type='gpt2'")
    config.write_text(json.dumps(own | {"num_hidden_layers": 1001}))
    refused(ValueError, "num_hidden_layers=1001 with 0 experts")
    config.write_text(json.dumps(own))
    refused(FileNotFoundError, "holds no model_state")
    weights.write_bytes(whole[: len(whole) // 2])
    refused(ValueError, r"model_state\.pdparams is broken")
    for wrong in ([1, 2], {"embedding": "text"}, None):
        weights.write_bytes(pickle.dumps(wrong, protocol=2))
        refused(ValueError, r"pdparams (is broken|holds no)")
    weights.write_bytes(whole)
    refused(ValueError, r"embed_tokens\.weight is \(256, 32")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text(
        (runs("llama") / "checkpoint-4/config.json").read_text()
    )
    tensors = paddle.load(str(weights))
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype("int8")
    paddle.save(tensors, str(tmp_path / "own/model_state.pdparams"))
    with pytest.raises(ValueError, match=r"own: .*norm\.weight is int8, no bf"):
        load_saved(tmp_path / "own")
    weights.rename(tmp_path / "model_state.moe00.pdparams")
    refused(ValueError, "cannot be put together")
    to_hf(runs("llama"), tmp_path / "out")
    weights = load_file(tmp_path / "out/model.safetensors")
    weights["surplus"] = weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "out/model.safetensors")
    (tmp_path / "out/checksums.json").unlink()
    with pytest.raises(ValueError, match=r"norm\.weight is missing.*surplus"):
        load_saved(tmp_path / "out")


def test_commands(runs, tmp_path, command, capsys):
    convert = command("convert")
    run, out = str(runs("mixtral")), str(tmp_path / "out")
    assert convert(["to-hf", run, out]) == 0
    assert convert(["from-hf", out, str(tmp_path / "back")]) == 0
    printed = capsys.readouterr().out
    assert "MixtralForCausalLM of step 4" in printed
    assert "tokenizer bytes" in printed
    new = str(tmp_path / "new")
    for arguments, message in (
        (["from-hf", run], f"{run} is a run or checkpoint of this package"),
        (["from-hf", f"{run}/checkpoint-4"], "4 is a run or checkpoint of"),
        (["from-hf", str(tmp_path)], f"{tmp_path} holds neither run.json nor"),
    ):
        assert convert([*arguments, new]) == 2
        assert message in capsys.readouterr().err


def test_refuses_parts_of_two_runs_in_one_folder(runs, tmp_path):
    source = runs("llama") / "checkpoint-4"
    for name in ("config.json", "model_state.pdparams"):
        shutil.copy(source / name, tmp_path)
    whole = load_saved(tmp_path)
    part = paddle.load(str(tmp_path / "model_state.pdparams"))
    other = tmp_path / "model_state.tp00.pdparams"
    paddle.save(part, str(other))  # the same again
    assert bits(load_saved(tmp_path)) == bits(whole)
    part["model.norm.weight"] += 1
    paddle.save(part, str(other))
    message = "tp00.pdparams: model.norm.weight differs from that of model_s"
    with pytest.raises(ValueError, match=message):
        load_saved(tmp_path)


def test_a_config_says_off_or_is_refused_by_file_and_key(
    runs, tmp_path, command, capsys
):
    convert, out = command("convert"), tmp_path / "out"
    assert convert(["to-hf", str(runs("llama")), str(out)]) == 0
    options = read_json(out / "config.json")
    for number, (changes, message) in enumerate(
        (
            ({"sliding_window": 8, "use_sliding_window": False}, ""),
            ({"sliding_window": 8}, "sliding_window=8: the decoder attends"),
            ({"rope_scaling": {"rope_theta": 5}}, "the same fact: remove the"),
            (
                {"tie_word_embeddings": True},
                "=true, but lm_head.weight differs",
            ),
        )
    ):
        (out / "config.json").write_text(json.dumps(options | changes))
        status = convert(["from-hf", str(out), str(tmp_path / f"b{number}")])
        said = capsys.readouterr().err
        assert (status, message in said) == (2 if message else 0, True)
        assert not message or str(out) in said


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
    SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three two one"] * 20),
        model_prefix=str(folder / "pieces"),
        vocab_size=13,
        minloglevel=2,
    )
    return folder / "pieces.model"


def tokens_of(name, text):
    """Tokens of a text by the tokenizer of this name."""
    return find_tokenizer(str(name)).load()([text])[0].tolist()


def test_texts_with_and_without_special_tokens(words, pieces):
    text = find_tokenizer(str(words))
    assert tokens_of(words, "a b") == [2, 3]
    assert text.decode([0, 2, 3]) == "a b"
    assert text.decode([0, 2], special=True) == "<s> a"
    text = find_tokenizer(str(pieces))
    assert text.decode(tokens_of(pieces, "two one")) == "two one"
    assert text.eos_id == 2
    assert tokens_of("bytes", "aä") == [0x61, 0xC3, 0xA4]
    assert find_tokenizer("bytes").decode([0x61, 0, 0xC3, 0xA4]) == "aä"


def with_manifest(saved, folder, tokenizer):
    manifest = Path(folder, "data.manifest.json")
    facts = {"tokenizer": tokenizer | {"vocab_size": 256}}
    manifest.write_text(json.dumps(sealed(facts)))
    data = {"kind": "mmap", "prefix": str(folder / "data")}
    return dataclasses.replace(saved, run={"config": {"data": data}})


def test_the_data_say_which_tokenizer(runs, tmp_path, words):
    saved = load_saved(runs("llama"))
    assert saved.tokenizer() == "bytes"
    assert saved.tokenizer(str(words)) == str(words)
    made = with_manifest(saved, tmp_path, {"kind": "bytes", "sha256": "0"})
    assert made.tokenizer() == "bytes"
    other = {"kind": "huggingface", "sha256": "0"}
    made = with_manifest(saved, tmp_path, other)
    assert made.tokenizer() is None
    with pytest.raises(ValueError, match="not the one that the data was made"):
        made.tokenizer(str(words))
    (tmp_path / "data.manifest.json").unlink()
    assert made.tokenizer() is None


def test_tokenizers_go_out_and_come_back(runs, tmp_path, words, pieces):
    to_hf(runs("llama"), tmp_path / "out", tokenizer=str(words))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["eos_token_id"] == 1
    from_hf(tmp_path / "out", tmp_path / "back")
    for folder in (tmp_path / "out", tmp_path / "back"):
        saved = load_saved(folder)
        assert saved.tokenizer() == str(folder)
        assert tokens_of(folder, "a b") == [2, 3]
    with pytest.warns(UserWarning, match="changes white space"):
        to_hf(runs("llama"), tmp_path / "out2", tokenizer=str(pieces))
    assert tokens_of(tmp_path / "out2", "two") == tokens_of(pieces, "two")


def test_refuses_a_tokenizer_of_more_tokens(runs, tmp_path, words):
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    tokenizer.add_tokens([f"word{i}" for i in range(300)])
    tokenizer.save(str(words / "tokenizer.json"))
    with pytest.raises(ValueError, match="305 tokens, the model 256"):
        to_hf(runs("llama"), tmp_path / "out", tokenizer=str(words))
    assert not (tmp_path / "out").exists()


def test_the_end_of_documents_is_that_of_the_data(
    words, tmp_path, runs, monkeypatch
):
    (words / "tokenizer_config.json").unlink()
    name = str(words / "tokenizer.json")
    identity = find_tokenizer(name, eos_id=3).identity()
    saved = with_manifest(load_saved(runs("llama")), tmp_path, identity)
    assert saved.document_end == 3
    assert saved.tokenizer(name) == name
    monkeypatch.setattr(saved_module, "load_saved", lambda *_, verify: saved)
    to_hf("anywhere", tmp_path / "out", tokenizer=name)
    assert read_json(tmp_path / "out/config.json")["eos_token_id"] == 3
