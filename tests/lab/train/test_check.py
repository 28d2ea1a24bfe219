# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/pretrain.py RECIPE --check``: plans, mistakes, what is missing."""

import errno
import importlib.util
import re
import sys

import numpy as np
import pytest
from adagc_lab.check import check_recipe
from adagc_lab.train.parse import load_config
from indexed import write_indexed_dataset
from pages import ROOT, load_tool

main = load_tool("pretrain").main

CONFIGS = ROOT / "configs"
LLAMA = CONFIGS / "llama2_1.3b/adagc.yaml"
MIXTRAL = CONFIGS / "mixtral_8x1b/adagc.yaml"
PROXY = CONFIGS / "proxy/llama2_1.3b/adagc.yaml"
ERNIE = CONFIGS / "ernie_10b_a1.4b_fp8/adagc.yaml"
OVER = "clip.overrides="
needs_paddlenlp = pytest.mark.skipif(
    importlib.util.find_spec("paddlenlp") is None,
    reason="PaddleNLP is not installed",
)


def check(capsys, path, *overrides):
    """Exit status and what was printed."""
    code = main([str(path), *overrides, "--check"])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def section(text, title):
    """Lines below a heading, without their indentation."""
    _, _, rest = text.partition(f"\n{title}\n")
    return [line.strip() for line in rest.split("\n\n")[0].splitlines()]


SIZES = """
llama2_1.3b/muon_adagc     1,339,082,752 219   1,273,546,752 256 37,748,736,000
llama2_7b/adagc            6,738,415,616 291   6,607,343,616  64 37,748,736,000
qwen3_1.7b/adagc           1,720,574,976 310   1,720,574,976 256 159,383,552,000
mixtral_8x1b/adagc         7,001,835,520 747   1,953,466,368 256 37,748,736,000
ernie_10b_a1.4b_fp8/adagc 10,559,741,440 3,853 1,447,616,000 256 352,321,536,000
"""
"""Recipe, parameters, tensors, active parameters, processes, tokens."""


@pytest.mark.parametrize(
    "row", SIZES.strip().splitlines(), ids=lambda row: row.split()[0]
)
def test_full_recipes_are_sound(capsys, row):
    recipe, total, tensors, active, processes, tokens = row.split()
    path = CONFIGS / f"{recipe}.yaml"
    code, out, _ = check(capsys, path)
    assert code == 0
    assert out.startswith(f"{path} is sound\n")
    assert f"  {total} parameters in {tensors} tensors, {active} active" in out
    assert f"{tokens} tokens" in section(out, "Batches")[2]
    missing = " ".join(section(out, "Missing here"))
    assert f"GPUs: {processes} for {processes} processes" in missing
    assert "bfloat16" in missing or "float8" in missing
    assert ".bin and data/" in missing
    launch = f"--nnodes {int(processes) // 8} --nproc_per_node 8 "
    assert f"{launch}tools/pretrain.py {path}" in section(out, "Launch")[1]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("paddleformers") is not None,
    reason="PaddleFormers is installed: nothing is missing",
)
def test_ernie_s_recipe_is_paddleformers(capsys):
    path = CONFIGS / "ernie_10b_a1.4b_fp8/globalgc_eps1e-8.yaml"
    _, out, _ = check(capsys, path)
    assert "PaddleFormers: pip install" in out
    assert "PaddleFormers cuts its own" in out
    assert main([str(path), "--overwrite"]) == 2
    assert "leave out --overwrite" in capsys.readouterr().err


def test_clip_s_recipe(capsys):
    code, out, _ = check(capsys, CONFIGS / "clip_vit_b32/adagc.yaml")
    assert code == 0
    assert "  151,277,313 parameters in 302 tensors" in out
    assert "20,000 steps: 655,360,000 pairs" in section(out, "Batches")
    assert section(out, "Layout")[0].startswith("64 processes = DP 64")
    assert "GPUs: 64" in section(out, "Missing here")[0]


@needs_paddlenlp
def test_output_below_a_file_is_refused(capsys, tmp_path):
    (tmp_path / "file").touch()
    override = f"train.output_dir={tmp_path}/file/run"
    assert main([str(PROXY), override]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/file is a file: name another directory\n" in error
    _, out, _ = check(capsys, PROXY, override)
    assert "is a file" in " ".join(section(out, "Missing here"))


@needs_paddlenlp
def test_a_recipe_without_its_launcher_is_given_the_command(
    capsys, monkeypatch
):
    command = ["tools/pretrain.py", str(LLAMA), "clip={name: adagc}"]
    monkeypatch.setattr(sys, "argv", command)
    assert main(command[1:]) == 2
    err = capsys.readouterr().err
    _, out, _ = check(capsys, *command[1:])
    where, line = section(out, "Launch")
    assert err.endswith(f"launch it like this:\n{where}\n{line}\n")
    assert "--nnodes 32 --nproc_per_node 8 " in line
    assert line.endswith(" 'clip={name: adagc}'")


def test_proxy_lacks_nothing(capsys):
    # Overrides may follow the options.
    assert main([str(PROXY), "--check", "train.max_steps=1501"]) == 0
    out = capsys.readouterr().out
    assert "1,501 steps" in out
    assert out.rstrip().endswith("Nothing is missing here.")
    assert section(out, "Data")[0].startswith("stdlib, ")
    command = f"python tools/pretrain.py {PROXY} train.max_steps=1501"
    assert section(out, "Launch") == [command]


NO_KEY = "- the recipe has no"


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (ERNIE, ["max_step=60000"], f"{NO_KEY} .*did you mean 'max_steps'"),
        (
            ERNIE,
            ["ernie_model_config.num_hidden_layer=3"],
            f"{NO_KEY} .*did you mean 'ernie_model_config.num_hidden_layers'",
        ),
        (MIXTRAL, [f"{OVER}{{gaate: null}}"], "'gaate' matches no tensor"),
        (
            MIXTRAL,
            [f"{OVER}{{embed: null, weight: {{beta: 0.9}}}}"],
            "matches both 'embed' and",
        ),
        (
            PROXY,
            [
                "faults=[{kind: gradient_scale, magnitude: 10, "
                "tensor: lm_head, start: 25}]"
            ],
            "did you mean 'lm_head.weight'",
        ),
        (
            LLAMA,
            ["clip.beta=2", "parallel.tp=3"],
            "not a multiple of the 3 ranks of parallel.tp .* - beta must be",
        ),
        (LLAMA, ["parallel.pp=2"], "this trainer has dp, tp and sharding"),
        (LLAMA, ["data.seq_length=4096"], "data.seq_length=4096 is above"),
        (
            PROXY,
            [
                *("train.max_stps=5", "schedule.learning_rate=-1"),
            ],
            "'train.max_steps'.*schedule.learning_rate: ",
        ),
        (PROXY, ["clip.lambda_rell=3"], "'lambda_rel'"),
        (PROXY, ["model.hidden_siz=4"], "'model.hidden_size'"),
    ],
)
def test_mistakes_of_a_recipe_are_found(capsys, recipe, overrides, message):
    code, out, _ = check(capsys, recipe, *overrides)
    assert (code, "has mistakes" in out) == (2, True)
    assert re.search(message, " ".join(section(out, "Mistakes")))
    assert not (section(out, "Layout") and "parallel.tp=3" in overrides)


@needs_paddlenlp
def test_a_full_disk_is_an_error_with_status_3(capsys, tmp_path, monkeypatch):
    def update_run_json(directory, **facts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        "adagc_lab.record.files.update_run_json", update_run_json
    )
    assert main([str(PROXY), f"train.output_dir={tmp_path / 'run'}"]) == 3
    error = capsys.readouterr().err
    assert f"cannot write to {tmp_path / 'run'}: No space left" in error
    assert "\nfree space, then give the same command again" in error


def test_data_is_measured_and_its_vocabulary_compared(tmp_path):
    prefix = str(tmp_path / "data")
    documents = np.split(np.arange(1000) % 300, 10)
    write_indexed_dataset(prefix, documents, vocab_size=300)
    data = f"{{kind: mmap, prefix: {prefix}, seq_length: 10, "
    data += "validation_fraction: 0.1, validation_size: 8}"

    def report(vocab_size):
        overrides = [f"data={data}", f"model.vocab_size={vocab_size}"]
        overrides += ["train.batch_size=8", "train.max_steps=10"]
        return check_recipe(load_config(PROXY, overrides), str(PROXY))

    found = report(300)
    assert (found.exit_status, found.missing) == (0, [])
    # 900 training tokens hold 89 windows of 10; the run takes 80.
    assert "900 tokens for training, the run takes 0.90 epochs" in found.text()
    found = report(299)
    assert found.exit_status == 2
    assert found.mistakes == [
        "model.vocab_size=299: the data's vocabulary has 300 tokens; raise it"
    ]
    (tmp_path / "data.bin").write_bytes(bytes(100))
    assert "100 bytes" in report(300).mistakes[0]
