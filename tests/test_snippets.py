# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every Python snippet of README and docs runs, and every docstring's."""

import doctest
import importlib
import os

import paddle
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import TINY_LLAMA
from pages import PAGES, ROOT, blocks, page_name
from reference.adaptive_norm import AdaptiveNorm
from reference.ernie import FILE, as_theirs

from paddle_adagc.integrations.trainer import ClippingMixin


def stand_ins():
    """What the snippets of a page take for granted, and its checkpoint."""
    from adagc_lab.models.config import DecoderConfig
    from adagc_lab.models.decoder import DecoderForCausalLM

    paddle.seed(0)
    model = paddle.nn.Sequential(paddle.nn.Linear(64, 64))
    loader = [(paddle.randn([8, 64]), paddle.arange(8))] * 3
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    os.makedirs("checkpoint-900", exist_ok=True)
    paddle.save(model.state_dict(), "checkpoint-900/model.pdparams")
    paddle.save(optimizer.state_dict(), "checkpoint-900/optimizer.pdopt")
    theirs = AdaptiveNorm()
    theirs.step([{p.name: p.numpy() for p in model.parameters()}])
    state = as_theirs(theirs.state_dict())
    paddle.save(state, f"checkpoint-900/{FILE}")
    return {
        "model": model,
        "loader": loader,
        "loss_fn": paddle.nn.CrossEntropyLoss(),
        "decoder": DecoderForCausalLM(DecoderConfig()),
        "gpt_model": fused_model(),
    }


def fused_model():
    """Experts in one parameter, and q, k and v in another."""
    experts = paddle.nn.Layer()
    experts.weight1 = experts.create_parameter([4, 6, 8])
    experts.weight2 = experts.create_parameter([4, 4, 6])
    qkv = paddle.nn.Linear(6, 3072, bias_attr=False)
    return paddle.nn.Sequential(
        ("grouped_gemm_experts", experts), ("qkv_proj", qkv)
    )


_ARGUMENTS = {
    "max_steps": 3,
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "report_to": [],
    "device": "cpu",
}


def run_trainer(code, library):
    """Run a snippet for the Trainer of PaddleNLP or PaddleFormers."""
    transformers = pytest.importorskip(f"{library}.transformers")
    config = transformers.LlamaConfig(**TINY_LLAMA)
    config.fuse_rms_norm = False  # that kernel needs a GPU
    tokens = paddle.randint(0, 64, [64, 16]).numpy()
    names = {
        "model": transformers.LlamaForCausalLM(config),
        "train_dataset": [{"input_ids": x, "labels": x} for x in tokens],
    }
    if library == "paddlenlp":
        arguments = importlib.import_module("paddlenlp.trainer")
        names["args"] = arguments.TrainingArguments("out", **_ARGUMENTS)
    exec(code, names)
    assert names.get("callback", names["trainer"]).clip.num_steps == 3


def train(model, optimizer):
    """What the snippets for several ranks call."""
    for _ in range(3):
        model(paddle.ones([8, 64])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def run_on_rank(code, folder):
    """Run a snippet for several ranks on this one."""
    os.chdir(folder)
    names = {
        "MyModel": lambda: paddle.nn.Sequential(paddle.nn.Linear(64, 64)),
        "train": train,
    }
    exec(code, names)
    gammas = names["clip"].full_state_dict()["gamma"]
    return names["clip"].num_steps, [*gammas]


KINDS = {
    "paddlenlp": "from paddlenlp.trainer",
    "paddleformers": "from paddleformers",
    "fleet": "import fleet",
    "auto-parallel": "dist.shard_optimizer",
}
"""Kind of a snippet that needs more than Paddle -> how to tell."""


def kind_of(code):
    """The kind of a snippet; ``"plain"`` ones run in this process."""
    return next((k for k, text in KINDS.items() if text in code), "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_snippets_for_trainers_and_fleet_run(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = {code for page in PAGES for code in blocks(page, "python")}
    snippets.add(doctest.script_from_examples(ClippingMixin.__doc__))
    snippets = {code for code in snippets if kind_of(code) == kind}
    assert snippets
    for code in snippets:
        if kind.startswith("paddle"):
            run_trainer(code, kind)
            continue
        ranks = run_on_ranks(run_on_rank, 2, code=code, folder=str(tmp_path))
        assert ranks == [(3, ["0.weight", "0.bias"])] * 2
        assert kind != "fleet" or [*tmp_path.glob("checkpoint-1000/*")]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_other_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = [c for c in blocks(page, "python") if kind_of(c) == "plain"]
    names = stand_ins() if snippets else {}
    for code in snippets:
        exec(code, names)


FILES = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in (ROOT / "paddle_adagc").rglob("*.py")
    if ">>>" in path.read_text("utf-8")
}
# These need PaddleNLP, and ERNIE's checkpoint: above.
FILES -= {ClippingMixin.__module__, "paddle_adagc.adaptive_norm"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_examples_of_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0
