# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretraining of CLIP through the same machinery as the decoder's."""

import numpy as np
import pytest
from adagc_lab.models import vision_text
from adagc_lab.record.files import RunRecord
from adagc_lab.train.checkpoints import load_pickle
from adagc_lab.train.parse import merged, parse_config
from adagc_lab.train.tasks import make_task
from core.parallel.ranks import run_on_ranks
from lab.train import runs


def make_values(**changes):
    values = runs.make_values(
        "x",
        batch_size=8,
        eval_every=4,
        save_every=4,
        optimizer={"name": "lion", "weight_decay": 0.2},
        schedule={"learning_rate": 1e-3, "warmup_steps": 2},
        record={"tensors": True},
    )
    values["data"] = {"kind": "shapes", "validation_size": 12}
    values["model"] = {
        "architecture": "clip",
        "vision_width": 24,
        "vision_layers": 1,
        "text_width": 24,
        "text_layers": 1,
        "patch_dropout": 0.5,
        "vocab_size": 28,
        "context_length": 9,
    }
    return merged(values, changes)


@pytest.mark.slow
def test_a_cut_run_and_one_with_workers_have_the_same_record(tmp_path):
    """Patches are dropped at random: the generator's state is resumed too."""
    faults = [{"kind": "repeated_batch", "start": 3, "every": 2}]
    whole = runs.run_whole_and_cut(make_values(faults=faults), tmp_path)
    steps, _ = runs.evaluated(whole)
    assert steps == [3, 7, 11]
    accuracy = whole.metrics["retrieval_accuracy"][steps]
    assert ((accuracy >= 0) & (accuracy <= 1)).all()
    assert "logit_scale" in whole.tensor_names
    assert whole.run["data"] == {"kind": "shapes", "num_scenes": 2188}
    assert sorted(whole.faults) == [3, 5, 7, 9, 11]
    assert whole.loss[-3:].mean() < whole.loss[:3].mean()
    values = make_values(faults=faults, data={"num_workers": 2})
    runs.assert_same(whole, runs.run_in(tmp_path / "workers", values))


def test_logit_scale_is_clamped_after_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(vision_text, "MAX_LOGIT_SCALE", 1.0)  # it starts at 2.7
    train = {"max_steps": 1, "save_every": 1}
    runs.run_in(tmp_path, make_values(train=train))
    saved = load_pickle(tmp_path / "checkpoint-1/model_state.pdparams")
    assert float(saved["logit_scale"]) == 1.0


@pytest.mark.slow
def test_two_ranks_train_as_one_process_with_the_whole_batch(tmp_path):
    changes = {
        "model": {"patch_dropout": 0.0},
        "record": {"tensors": False},
        "optimizer": {"name": "adamw"},
        "train": {"eval_every": 12},
    }
    alone = runs.run_in(tmp_path / "alone", make_values(**changes))
    changes["train"] |= {"batch_size": 4, "output_dir": str(tmp_path / "two")}
    values = make_values(parallel={"sharding": 2}, **changes)
    assert run_on_ranks(runs.pretrain, 2, values=values) == ["finished"] * 2
    two = RunRecord.load(tmp_path / "two")
    np.testing.assert_allclose(two.loss, alone.loss, rtol=1e-4)
    assert (
        two.metrics["retrieval_accuracy"][-1]
        == alone.metrics["retrieval_accuracy"][-1]
    )


LABELS = {"kind": "constant_labels", "start": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"tp": 2}}, "parallel.tp=2 with clip"),
        ({"train": {"gradient_accumulation_steps": 2}}, "_steps=2 with clip"),
        ({"train": {"expert_bias_rate": 0.1}}, "no experts"),
        ({"faults": [LABELS]}, "constant_labels with clip"),
        ({"train": {"precision": "float8"}}, "no FP8"),
        ({"data": {"kind": "stdlib"}}, "data.kind with clip"),
        ({"model": {"vocab_size": 20}}, "vocab_size to 28"),
        ({"model": {"architecture": "decoder"}}, "with a decoder.*'shapes'"),
    ],
)
def test_what_clip_cannot_do_is_refused(changes, message):
    values = make_values(record={"tensors": False}, **changes)
    with pytest.raises(ValueError, match=message):
        make_task(parse_config(values)).build_datasets(1)
