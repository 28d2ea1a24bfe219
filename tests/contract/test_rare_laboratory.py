# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a user of the laboratory may give, and few do."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("paddlenlp")
pytest.importorskip("pandas")

import huggingface_hub
import paddle
import pandas as pd
from adagc_lab.benchmark import gpu_tables
from adagc_lab.clips.compared import ClipGradBySkipStep
from adagc_lab.clips.measured import _factor
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.layers import GatedMLP
from adagc_lab.paddleformers.recipe import as_run_config
from adagc_lab.record.files import read_run_json, update_run_json
from adagc_lab.report.measures import describe_run, measure
from adagc_lab.reproduce import store
from adagc_lab.reproduce.grid import load_target
from adagc_lab.reproduce.pairs import Pairs
from adagc_lab.reproduce.rates import rate_table, rates_why
from adagc_lab.reproduce.tables import _compared, _sums_and_shared
from adagc_lab.reproduce.targets import Target
from adagc_lab.train.parse import parse_config
from adagc_lab.train.run import run_pretraining
from indexed import write_random_dataset
from lab.models.tiny import build
from lab.report.test_report import make_run
from lab.reproduce.conftest import (
    FAULTS,
    planned,
    write_grid,  # noqa: F401
    write_run,
)
from lab.reproduce.test_rows import make_row
from lab.train import runs
from lab.train.test_start import constant, fork
from paddle.amp.auto_cast import amp_initialize
from pages import ROOT, load_tool

prepare = load_tool("prepare_data")


@pytest.mark.parametrize(
    "name", ["mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-1.7B", "a/llama"]
)
def test_a_tokenizer_with_a_dot_in_its_name_is_downloaded(
    name, monkeypatch, tmp_path
):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda asked, **_: tmp_path if asked == name else pytest.fail(asked),
    )
    assert prepare._tokenizer_file(name) == tmp_path / "tokenizer.json"


def test_a_file_that_was_cut_off_is_named(tmp_path, capsys):
    path = tmp_path / "part.json.gz"
    lines = [json.dumps({"text": f"document {n}"}) for n in range(999)]
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-999])
    output = ["--tokenizer", "bytes", "--output", str(tmp_path / "data")]
    assert prepare.main([str(path), *output]) == 2
    assert f"{path} cannot be read" in capsys.readouterr().err


def test_a_run_whose_loss_died_counts_as_diverged():
    """A clip that zeroes NaN keeps its weights finite."""
    run = make_run(tensors=False)
    run.loss[-100:] = np.nan
    row = describe_run(run, 200)
    assert row["status"] == "diverged"
    assert measure(row)["end"] == np.inf


def test_faults_of_a_grid_s_config_are_injected(write_grid):  # noqa: F811
    changed = planned(write_grid("a.yaml", {"changes": FAULTS}))
    given = planned(write_grid("b.yaml", FAULTS))
    assert [run.config for run in changed] == [run.config for run in given]


def cells_of(*rows):
    names = ["method", "seed", "processor", "loss"]
    return pd.DataFrame(rows, columns=names).assign(beta2="0.95", rate=0.003)


def test_best_rates_are_compared_on_one_processor():
    cells = cells_of(
        *(("GlobalGC 1", 1, "P1", 1.0), ("GlobalGC 1", 1, "P2", 2.0)),
        *(("AdaGC", 1, "P2", 1.9), ("AdaGC", 1, "P1", 0.9)),
        *(("GlobalGC 1", 2, "P1", 1.0), ("AdaGC", 2, "P1", 0.9)),
    )
    last = rate_table(cells).splitlines()[-1]
    assert last.endswith("| -0.100 |")


def test_added_results_never_replace_a_row(tmp_path):
    row = make_row(seed=1, loss=[1.0, 2.0])
    store.append(tmp_path / "mine", "t", [row])
    store.append(tmp_path / "other", "t", [{**row, "digest": "older"}])
    store.merge(tmp_path / "mine", tmp_path / "other")
    (found,) = store.load(tmp_path / "mine")["digest"]
    assert found == row["digest"]


def test_runs_on_other_texts_make_no_pair():
    row = {"seed": 1, "steps": 9, "processor": "P", "clean_twin": 0, "x": 1.0}
    rows = pd.DataFrame(
        [
            {**row, "method": "GlobalGC 1", "data": "python 3.11"},
            {**row, "method": "AdaGC", "data": "python 3.12"},
            {**row, "method": "ZClip", "data": "python 3.11"},
        ]
    )
    pairs = Pairs(rows, "GlobalGC 1")
    assert pairs.differences("AdaGC", 9, "x") == []
    assert pairs.differences("ZClip", 9, "x") == [0.0]


def digits_of(*parts):
    run = make_run(tensors=False)
    run.run["data"] = dict(
        zip(("sha256", "sampled_sha256"), parts, strict=False)
    )
    return describe_run(run, 200)["data"]


def test_two_texts_with_documents_of_the_same_lengths_are_two():
    index, text, other = "a" * 64, "b" * 64, "c" * 64
    assert digits_of(index) == index[:12]
    assert digits_of(index, text) == digits_of(index, text)
    assert digits_of(index, text) != digits_of(index, other)


def test_pairs_that_both_diverged_are_told():
    row = {"steps": 9, "processor": "P", "clean_twin": 0, "data": ""}
    rows = [
        {**row, "seed": seed, "method": method, "x": np.inf if seed < 2 else x}
        for seed in range(8)
        for method, x in (("GlobalGC 1", 1.0), ("AdaGC", 1.5))
    ]
    pairs = Pairs(pd.DataFrame(rows), "GlobalGC 1")
    cell = _compared(pairs, "AdaGC", 9, "x")
    assert cell == "+0.500 (+0.500, +0.500); both diverged in 2"


def test_peaks_at_the_same_step_are_told_from_others():
    def run(method, *high):
        loss = np.ones(300)
        loss[[*high]] = 2.0
        row = {"seed": 1, "steps": 300, "processor": "", "clean_twin": 0}
        row |= {"data": "", "skip_steps": 0, "left_out": "", "status": "x"}
        return {**row, "method": method, "num_losses": 300, "loss": loss}

    rows = [run("GlobalGC 1", 100, 101, 150, 200), run("AdaGC", 101, 153)]
    pairs = Pairs(pd.DataFrame(rows), "GlobalGC 1")
    assert _sums_and_shared(pairs, "AdaGC", 300, "peaks") == "3 → 2 (1)"


def test_a_run_that_diverged_counts_where_the_mechanism_is_asked():
    loss = np.full(600, 1.5)
    rows = pd.DataFrame(
        [
            ("GlobalGC 1", 1, "finished", loss),
            ("AdaGC", 1, "diverged", np.r_[loss, np.nan]),
        ],
        columns=["method", "seed", "status", "loss"],
    ).assign(target="rates-why", processor="P", early_update_norm=1.0)
    assert "| AdaGC | 1 | inf | +inf |" in rates_why(rows)


def test_a_run_that_died_has_no_validation_loss_of_before():
    run = make_run(tensors=False)
    run.metrics["eval_loss"] = np.full(len(run.loss), np.nan)
    run.metrics["eval_loss"][100] = 1.0
    assert describe_run(run, 200)["validation_loss"] == 1.0
    run.loss[-100:] = np.nan
    assert describe_run(run, 200)["validation_loss"] == np.inf


def test_a_failed_check_of_one_dtype_is_shown(tmp_path):
    about = {"gpu": "H", "framework": "F", "driver": 13000, "nvrtc": "13"}
    rows = [
        {"check": "same bits", "error": "float32 differs", **about},
        {"check": "same bits", **about},
    ]
    file = tmp_path / "gpu.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "same bits: error (float32 differs)" in gpu_tables.tables(file)


@pytest.mark.parametrize("text", [None, 5, "lone \ud800"])
def test_a_document_that_is_no_text_is_named(text, tmp_path, capsys):
    path = tmp_path / "part.jsonl"
    path.write_text(
        json.dumps({"text": "a"}) + "\n" + json.dumps({"text": text})
    )
    output = ["--tokenizer", "bytes", "--output", str(tmp_path / "data")]
    assert prepare.main([str(path), *output]) == 2
    assert (
        f"{path}, line 2: no JSON object with a text" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.moe_correction_bias=false"], "expert_bias_rate=0.001 moves"),
        (["optimizer.name=muon", "parallel.tp=2"], "needs whole tensors"),
        (["clip={name: zclip}", "parallel.tp=2"], "ZClip under tensor"),
        (["train.precision=float8", "parallel.tp=2"], "FP8 layers are not"),
        (
            ["train.precision=float8", "model.float8_linears=[mlp]"],
            "it has ..attention., .experts..",
        ),
    ],
)
def test_what_would_do_nothing_or_fail_is_refused_at_once(changes, message):
    off = "record={tensors: false, moments: false}"
    values = runs.proxy_values("ernie_moe", "out", off, *changes)
    with pytest.raises(ValueError, match=message):
        runs.pretrain(values)


def test_gates_far_below_zero_have_a_finite_gradient():
    options = {
        "hidden_size": 4,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
    }
    mlp = GatedMLP(DecoderConfig(**options), 3)
    mlp.gate_proj.weight.set_value(paddle.full([4, 3], -1.0))
    x = paddle.to_tensor([[22.0] * 4, [500.0] * 4, [0.5] * 4])
    mlp(x).sum().backward()
    for weight in mlp.parameters():
        assert paddle.isfinite(weight.grad).all(), weight.name
    assert paddle.isnan(mlp(paddle.full([1, 4], float("nan")))).all()
    silu = -2 / (1 + np.exp(2.0))  # of -2, the gates of the last row
    expected = silu * (x[2] @ mlp.up_proj.weight).unsqueeze(-1).expand([3, 4])
    np.testing.assert_allclose(mlp.down_proj.weight.grad, expected, rtol=1e-5)


def test_the_experts_biases_stay_float32_in_bfloat16():
    model = build("ernie4_5_moe", moe_correction_bias=True)
    # What paddle.amp.decorate() calls on a GPU.
    amp_initialize([model], "bfloat16", None)
    layer = model.model.layers[1].mlp
    assert layer.e_score_correction_bias.dtype == paddle.float32
    assert layer.experts[0].up_proj.weight.dtype == paddle.bfloat16


def test_a_run_is_not_overwritten_by_one_that_is_refused(tmp_path):
    values = runs.make_values(tmp_path / "run")
    runs.run(values)
    before = (tmp_path / "run/run.json").read_bytes()
    values |= {"clip": {"name": "zclip"}, "record": {}}
    values["parallel"] = {"sharding": 2}
    with pytest.raises(ValueError, match="under sharding over 2 ranks"):
        run_pretraining(parse_config(values), overwrite=True)
    assert (tmp_path / "run/run.json").read_bytes() == before


def test_no_job_is_a_mistake(capsys):
    tool = load_tool("reproduce")
    assert tool.main(["quickstart", "--jobs", "0", "--dry-run"]) == 2
    assert "jobs" in capsys.readouterr().err


def test_other_steps_to_skip_replace_a_row(tmp_path):
    (experiment, *_) = load_target(
        ROOT / "configs/experiments/quickstart.yaml"
    ).experiments
    rows = []
    for skip in (200, 100):
        row = describe_run(make_run(tensors=False), skip)
        names = {"target": "t", "experiment": experiment.name, "method": "m"}
        rows = [{**names, "seed": 1, "clean_twin": 0, "digest": "d", **row}]
        store.append(tmp_path, "t", rows)
    assert store.load(tmp_path)["skip_steps"].tolist() == [100]


def test_runs_that_another_commit_made_are_named(
    write_grid,  # noqa: F811
    tmp_path,
    capsys,
):
    target = Target.plan(write_grid(), tmp_path / "out")
    for _, planned_runs in target.grid:
        for run in planned_runs:
            write_run(run)
    target.run(tmp_path / "out", tmp_path / "out/results", 1)
    assert "with runs of other commits: abc\n" in capsys.readouterr().out


@pytest.mark.parametrize("window", [2, 4, 6])
def test_a_fork_to_another_window_keeps_the_newest_norms(window):
    before = ClipGradBySkipStep(window=4)
    before.state["past"] = paddle.to_tensor([4.0, 3.0, 2.0, 1.0])
    clip = ClipGradBySkipStep(window=window)
    clip.set_state_dict(before.state_dict())
    past = [4.0, 3.0, 2.0, 1.0, 0.0, 0.0]
    assert clip.state["past"].tolist() == past[:window]


def test_a_run_on_two_types_of_processor_names_both(tmp_path):
    values = constant(tmp_path, max_steps=4, save_every=2)
    assert runs.run(values)[0] == "finished"
    machine = read_run_json(tmp_path)["machine"]
    own = machine["processor"]
    update_run_json(tmp_path, machine={**machine, "processor": "Other"})
    for steps in (6, 8):
        longer = constant(tmp_path, max_steps=steps, save_every=2)
        assert runs.run(longer)[0] == "finished"
        found = read_run_json(tmp_path)["machine"]["processor"]
        assert found == f"Other; {own}"


def test_a_run_does_not_go_on_with_other_validation_data(tmp_path):
    data = write_random_dataset(tmp_path / "train", seed=0)
    held_out = write_random_dataset(tmp_path / "other", seed=1)["prefix"]
    data = {**data, "validation_prefix": held_out}
    values = runs.make_values(tmp_path / "run", save_every=4, data=data)
    with runs.interrupted_at(6):
        runs.run(values)
    write_random_dataset(held_out, seed=2)
    with pytest.raises(ValueError, match="the data has changed"):
        runs.run(values)
    write_random_dataset(held_out, seed=1)
    assert runs.run(values)[0] == "finished"


def test_an_enlarged_gradient_is_recorded_as_it_is():
    assert _factor(1.0, 2.0) == 2.0
    assert _factor(1.0, 1.0 + 1e-7) == 1.0


def test_what_was_trained_on_is_no_validation(tmp_path, capsys):
    source = tmp_path / "source"
    runs.run(constant(source))
    values = constant(source, max_steps=20, seed=7)
    with pytest.raises(ValueError, match=r"data\.seed=7, and 0 in the run"):
        fork(values, source, tmp_path / "fork")
    assert not (tmp_path / "fork/run.json").exists()
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    evaluate = load_tool("evaluate").main
    assert evaluate([str(source), "--data", str(config)]) == 2
    assert "data.seed=7" in capsys.readouterr().err
    values["data"]["seed"] = 0
    assert fork(values, source, tmp_path / "fork")[0] == "finished"


def test_the_plan_has_experts_in_every_layer(tmp_path):
    folder = ROOT / "configs/ernie_10b_a1.4b_fp8"
    settings = json.loads((folder / "config.json").read_text())
    changed = json.dumps({**settings, "moe_layer_start_index": 1})
    (tmp_path / "config.json").write_text(changed)
    for name in ("adagc.yaml", "base.yaml"):
        if (folder / name).exists():
            (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(ValueError, match="moe_layer_start_index=1"):
        as_run_config(tmp_path / "adagc.yaml")


def test_a_fork_to_another_start_of_gamma_begins_anew(tmp_path):
    values = constant(tmp_path / "old", keep_checkpoints=9)
    assert runs.run(values)[0] == "finished"
    for number, clip in enumerate(
        [{"init": "constant", "init_value": 0.5}, {"init": "warmup_min"}]
    ):
        changed = {"clip": {"name": "adagc", **clip}}
        source = tmp_path / ("new0" if number else "old")
        target = tmp_path / f"new{number}"
        values = constant("", keep_checkpoints=9, **changed)
        assert fork(values, source, target, step=8)[0] == "finished"
