# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the layout reads from a model: marks, keys, stages."""

import paddle
import pytest
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import plain
from helpers import TINY_LLAMA

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import TensorLayout, read_layout


class Stage(paddle.nn.Layer):
    """A stage of no class of Paddle's, as PaddleFleet's."""

    def __init__(self, layers, num_virtual=1, shared_layers=None, comm=None):
        super().__init__()
        for name, layer in layers.items():
            self.add_sublayer(name, layer)
        self._num_virtual_pipeline_stages = num_virtual
        self.shared_layers = paddle.nn.LayerDict(shared_layers or {})
        self.shared_comm = comm or {}

    def get_num_virtual_stages(self):
        return self._num_virtual_pipeline_stages


class SharesPairs(paddle.nn.Embedding):
    """As PaddleFleet's ``mtp_shared_last_layer`` names what it shares."""

    @property
    def weights(self):
        return self.named_parameters()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("attribute", ["weight", "weights"])
def test_the_first_stage_counts_a_tied_tensor(monkeypatch, rank, attribute):
    """PaddleNLP's stages have one key for it: below."""
    embedding = SharesPairs(4, 2)
    comm = {"layer": embedding, "ranks": [0, 1], "weight_attr": [attribute]}
    model = Stage(
        {"0": paddle.nn.Linear(2, 2, bias_attr=False)},
        shared_layers={"embed": embedding},
        comm={"embed": comm},
    )
    monkeypatch.setattr(paddle.distributed, "get_rank", lambda: rank)
    dense, tied = read_layout(model).values()
    assert (dense.key, dense.is_tied_copy) == ("0.weight", False)
    assert tied.key == "shared_layers.embed.weight"
    assert tied.is_tied_copy == (rank == 1)


def test_virtual_stages_have_global_indices():
    chunk = paddle.nn.Sequential(
        paddle.nn.ReLU(), paddle.nn.Linear(2, 2, bias_attr=False)
    )
    linear = paddle.nn.Linear(2, 2, bias_attr=False)
    norm = paddle.nn.LayerNorm(2)
    model = Stage({"4": chunk, "7": linear, "norm": norm}, num_virtual=2)
    keys = [t.key for t in read_layout(model).values()]
    assert keys == ["5.weight", "7.weight", "norm.weight", "norm.bias"]
    model._num_virtual_pipeline_stages = 1
    assert "4.1.weight" in {t.key for t in read_layout(model).values()}


ON_TP_AXIS = {"is_expert": True, "is_expert_on_tp_axis": True}


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, {}),
        ({"no_sync": True}, {"is_expert": True, "is_unsynced": True}),
        ({"expert": True}, {"is_expert": True}),
        ({"color": {"color": "moe_expert"}}, {"is_expert": True}),
        ({"color": {"color": "moe_weight_no_hook"}}, {"is_expert": True}),
        ({"color": {"color": "other"}}, {}),
        ({"color": "moe_expert"}, {}),
        ({"no_sync": False}, {}),
        ({"mp_moe": True}, ON_TP_AXIS),
        ({"color": {"color": "moe_expert"}, "no_sync": False}, ON_TP_AXIS),
        ({"is_distributed": True}, {"is_tp_split": True}),
        ({"need_clip": False}, {"takes_part": False}),
        ({"need_clip": "no"}, {}),
        ({"stop_gradient": True}, {"takes_part": False}),
    ],
)
def test_marks(marks, expected):
    model = paddle.nn.Linear(3, 2)
    for name, value in marks.items():
        setattr(model.weight, name, value)
    weight, _ = read_layout(model).values()
    assert weight == TensorLayout(key="weight", shape=(3, 2), **expected)


def test_a_layer_says_that_ranks_hold_parts_of_all_its_experts():
    """As PaddleFleet's, where ranks share the inner axis of every expert."""
    model = paddle.nn.Sequential(*(paddle.nn.Linear(2, 2) for _ in "ab"))
    model[1].intermediate_ep_sharded = True
    found = [t.is_split_over_experts for t in read_layout(model).values()]
    assert found == [False, False, True, True]


def clip_of_tied_llama(is_pipeline, state=None):
    """Gammas of the whole model after a step, or after loading a state."""
    from paddlenlp import transformers

    kind = transformers.LlamaForCausalLM
    if is_pipeline:
        Layout(pp=2).start()
        kind = transformers.LlamaForCausalLMPipe
    config = transformers.LlamaConfig(**TINY_LLAMA, tie_word_embeddings=True)
    model = kind(config)
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(model)
    if state is None:
        clip([(p, paddle.ones_like(p)) for p in model.parameters()])
    else:
        clip.set_state_dict(state)
    return plain(clip.full_state_dict())


@pytest.mark.slow
def test_tied_head_has_the_embedding_s_key_on_every_stage():
    pytest.importorskip("paddlenlp")
    whole = clip_of_tied_llama(False)
    assert len(whole["gamma"]) == 1 + 2 * 9 + 1
    for state in run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True):
        assert state["gamma"] == whole["gamma"]
    loaded = run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True, state=whole)
    assert [state["gamma"] for state in loaded] == [whole["gamma"]] * 2
