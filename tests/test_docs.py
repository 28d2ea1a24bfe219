# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""README and docs: links, names, commands and snippets are those of the code."""

import argparse
import contextlib
import importlib.util
import inspect
import os
import pydoc
import re
import shlex
import sys
import warnings
from distutils.core import run_setup
from pathlib import Path

import paddle
import pytest
import yaml
from core.parallel.ranks import run_on_ranks
from paddle.distributed.launch.context.args_envs import parse_args

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips import registry
from paddle_adagc.lab.recipes import read_run
from paddle_adagc.lab.reproduce.grid_file import load_target
from paddle_adagc.lab.train.parse import load_config

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CHINESE = ROOT / "README_cn.md"
PAGES = [
    README,
    CHINESE,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROXY = ROOT / "configs/proxy/llama_low_noise.yaml"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_FOLDERS = ("paddle_adagc", "configs", "tools", "tests", "docs", "results")
every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def blocks(page, language):
    """Code blocks of a page in one language."""
    found = _BLOCK.findall(page.read_text("utf-8"))
    return [code for name, code in found if name == language]


def prose(page):
    """A page's text without its code blocks."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def anchors(page):
    """Anchors of a page's headings, on GitHub and in the built site."""
    found = set()
    for _, heading in _HEADING.findall(prose(page)):
        kept = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        found |= {re.sub(r"\s", "-", kept), re.sub(r"[-\s]+", "-", kept)}
    return found


def commands(page):
    """Commands of a page: shell blocks, and whole commands in the prose."""
    lines = []
    for block in blocks(page, "bash"):
        lines += block.replace("\\\n", " ").splitlines()
    for span in _SPAN.findall(prose(page)):
        if span.startswith(("python tools/", "pip install", "pytest ")):
            lines.append(span)
    return [
        shlex.split(part)
        for line in lines
        for part in line.split("&&")
        if shlex.split(part, comments=True)
    ]


def test_readme_is_one_page_that_begins_with_the_set_up():
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 250
    set_up = [line for line in lines[:60] if line.startswith("pip install -e")]
    assert len(set_up) == 2
    assert set_up[1].endswith("&& pytest")


@every_page
def test_links_resolve(page):
    for link in _LINK.findall(prose(page)):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: no {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: no {link}"


@every_page
def test_named_files_and_objects_exist(page):
    for span in _SPAN.findall(prose(page)):
        path = span.split("::")[0]
        if re.fullmatch(rf"({'|'.join(_FOLDERS)})/[\w./-]*", path):
            is_placeholder = re.search(r"[A-Z]{4,}", path)
            assert is_placeholder or (ROOT / path).exists(), f"no {path}"
        name = re.fullmatch(r"(paddle_adagc(\.\w+)+)(\(.*\))?", span)
        if name:
            assert pydoc.locate(name[1]) is not None, f"no {name[1]}"


class _Parsed(Exception):
    """Carries what a tool's parser made of its arguments."""


def parsed(tool, arguments, monkeypatch):
    """The options that a tool's own parser gives; the tool does nothing."""
    for name in ("parse_args", "parse_intermixed_args"):
        original = getattr(argparse.ArgumentParser, name)

        def stop(self, *args, _original=original, **kwargs):
            raise _Parsed(_original(self, *args, **kwargs))

        monkeypatch.setattr(argparse.ArgumentParser, name, stop)
    spec = importlib.util.spec_from_file_location("tool", ROOT / tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.main(arguments)
    except _Parsed as found:
        return found.args[0]
    except SystemExit:
        pytest.fail(f"{tool} does not take {arguments}")
    finally:
        monkeypatch.undo()
    raise AssertionError(f"{tool} parses no arguments")


def check_tool(tool, arguments, monkeypatch):
    """Parse a tool's arguments, and read the config that they name."""
    options = parsed(tool, arguments, monkeypatch)
    if tool in ("tools/pretrain.py", "tools/plan.py"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_run(ROOT / options.config, options.overrides)


def check_launch(arguments, monkeypatch):
    """Parse the arguments of Paddle's launcher, then those of the tool."""
    monkeypatch.setattr(sys, "argv", ["launch", *arguments])
    options, unknown = parse_args()
    monkeypatch.undo()
    assert not unknown
    if options.training_script != "SCRIPT":
        rest = options.training_script_args
        check_tool(options.training_script, rest, monkeypatch)


def check_extras(arguments):
    """The extras are those of setup.py."""
    with contextlib.chdir(ROOT):
        known = run_setup("setup.py", stop_after="config").extras_require
    for extras in re.findall(r"\[(.+)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= known.keys()


def check_pytest(arguments):
    """The paths exist."""
    for argument in arguments:
        is_path = argument.startswith("tests")
        assert not is_path or (ROOT / argument.split("::")[0]).exists()


@every_page
def test_commands_parse(page, monkeypatch):
    for command in commands(page):
        match command:
            case ["python", "-m", "paddle.distributed.launch", *arguments]:
                check_launch(arguments, monkeypatch)
            case ["python", tool, *arguments] if tool.startswith("tools/"):
                check_tool(tool, arguments, monkeypatch)
            case ["pip", "install", "-e", *arguments]:
                check_extras(arguments)
            case ["pytest", *arguments]:
                check_pytest(arguments)
            case [".ci/run"]:
                assert (ROOT / ".ci/run").exists()
            case ["mkdocs" | "ruff" | "mypy" | "pre-commit" | "source", *_]:
                pass
            case ["python", "-m", "venv", _]:
                pass
            case _:
                pytest.fail(f"{page.name}: nothing checks {command}")


@every_page
def test_configs_load(page, tmp_path):
    for block in blocks(page, "yaml"):
        file = tmp_path / "block.yaml"
        if "experiments" in yaml.safe_load(block):
            file.write_text(block)
            for experiment in load_target(file).experiments:
                assert (ROOT / "configs/experiments" / experiment.config).exists()
        else:
            file.write_text(f"base: {PROXY}\n{block}")
            load_config(file)


def stand_ins():
    """What the snippets of a page take for granted, and its checkpoint."""
    from paddle_adagc.lab.models.config import DecoderConfig
    from paddle_adagc.lab.models.decoder import DecoderForCausalLM

    paddle.seed(0)
    model = paddle.nn.Sequential(paddle.nn.Linear(64, 64))
    loader = [(paddle.randn([8, 64]), paddle.arange(8))] * 3
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    os.makedirs("checkpoint-900", exist_ok=True)
    paddle.save(model.state_dict(), "checkpoint-900/model.pdparams")
    paddle.save(optimizer.state_dict(), "checkpoint-900/optimizer.pdopt")
    return {
        "model": model,
        "loader": loader,
        "loss_fn": paddle.nn.CrossEntropyLoss(),
        "decoder": DecoderForCausalLM(DecoderConfig()),
    }


class Tokens(paddle.io.Dataset):
    """Random tokens."""

    def __len__(self):
        """Number of samples."""
        return 64

    def __getitem__(self, index):
        """The same tokens as inputs and labels."""
        tokens = paddle.randint(0, 64, [16]).numpy()
        return {"input_ids": tokens, "labels": tokens}


_LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
_ARGUMENTS = {
    "max_steps": 3,
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "report_to": [],
    "device": "cpu",
}


def run_paddlenlp(code):
    """Run a snippet for PaddleNLP's Trainer."""
    pytest.importorskip("paddlenlp")
    from paddlenlp.trainer import TrainingArguments
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

    names = {
        "model": LlamaForCausalLM(LlamaConfig(**_LLAMA)),
        "training_args": TrainingArguments("out", **_ARGUMENTS),
        "train_dataset": Tokens(),
    }
    exec(code, names)
    assert names["trainer"].clip.num_steps == 3


def run_paddleformers(code):
    """Run a snippet for PaddleFormers' Trainer."""
    pytest.importorskip("paddleformers")
    from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_LLAMA)
    config.fuse_rms_norm = False  # that kernel needs a GPU
    names = {
        "model": LlamaForCausalLM(config),
        "arguments": {**_ARGUMENTS, "amp_master_grad": False},
        "train_dataset": Tokens(),
    }
    exec(code, names)
    assert names["trainer"].clip.num_steps == 3


def run_fleet(code, folder):
    """Run a snippet for fleet on this rank, under sharding V2."""
    from paddle.distributed import fleet

    os.chdir(folder)
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"sharding_degree": 2}
    strategy.hybrid_configs["sharding_configs"].split_param = True

    def train(model, optimizer):
        for _ in range(3):
            model(paddle.randn([8, 64])).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()

    names = {
        "MyModel": lambda: paddle.nn.Sequential(paddle.nn.Linear(64, 64)),
        "strategy": strategy,
        "train": train,
    }
    exec(code, names)
    return names["clip"].num_steps, [*names["state"]["gamma"]]


def check_fleet(code, folder):
    """Run a snippet for fleet on two ranks."""
    ranks = run_on_ranks(run_fleet, 2, code=code, folder=str(folder))
    assert ranks == [(3, ["0.weight", "0.bias"])] * 2
    assert [*folder.glob("checkpoint-1000/*")]


KINDS = {
    "paddlenlp": "from paddlenlp.trainer",
    "paddleformers": "from paddleformers",
    "fleet": "import fleet",
}
"""Kind of a snippet that needs more than Paddle -> how to tell."""


def kind_of(code):
    """The kind of a snippet; ``"plain"`` ones run in this process."""
    return next((k for k, text in KINDS.items() if text in code), "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_snippets_for_trainers_and_fleet_run(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = {
        code
        for page in PAGES
        for code in blocks(page, "python")
        if kind_of(code) == kind
    }
    assert snippets
    for code in snippets:
        if kind == "fleet":
            check_fleet(code, tmp_path)
        else:
            {"paddlenlp": run_paddlenlp, "paddleformers": run_paddleformers}[
                kind
            ](code)


@every_page
def test_other_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "CLIPS", dict(registry.CLIPS))
    snippets = [c for c in blocks(page, "python") if kind_of(c) == "plain"]
    names = stand_ins() if snippets else {}
    for code in snippets:
        exec(code, names)


def table(page, first):
    """Cells of the table whose header begins with this cell."""
    lines = prose(page).splitlines()
    start = next(i for i, x in enumerate(lines) if x.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("page", [README, ROOT / "docs/method.md"])
def test_arguments_and_defaults_are_the_class_s(page):
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(
            ClipGradByAdaGC
        ).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    shown = {row[0].strip("`"): row[1] for row in table(page, "argument")}
    assert shown.keys() == known.keys()
    for name, default in shown.items():
        value = None if default == "–" else yaml.safe_load(default.strip("`"))
        assert value == known[name], name


def test_every_rule_of_the_registry_is_in_the_table():
    rows = table(ROOT / "docs/compared-methods.md", "`clip.name`")
    assert {row[0].strip("`") for row in rows} == {*registry.CLIPS}


def test_numbers_of_the_readme_are_those_of_the_results_page():
    results = (ROOT / "docs/results.md").read_text("utf-8")
    for row in table(README, "proxy"):
        line = rf"\| {re.escape(row[2])} \|"
        for cell in row[2:]:
            assert f"| {cell} |" in results, cell
        assert re.search(line, results)


def test_the_chinese_readme_has_the_same_structure():
    for language in ("python", "bash", "bibtex"):
        assert blocks(CHINESE, language) == blocks(README, language)
    levels = [
        [len(marks) for marks, _ in _HEADING.findall(prose(page))]
        for page in (README, CHINESE)
    ]
    assert levels[0] == levels[1]
    numbers = [re.findall(r"\d+\.\d+", prose(page)) for page in (README, CHINESE)]
    assert numbers[0] == numbers[1]
