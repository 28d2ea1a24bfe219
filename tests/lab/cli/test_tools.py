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
"""The commands in an environment without PaddleNLP, such as PaddleFormers'."""

import runpy
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
CONFIG = str(TOOLS.parent / "configs" / "proxy" / "ernie_moe.yaml")
RECIPE = "configs/ernie_10b_a1.4b_fp8/adagc.yaml"
COMMANDS = {
    "pretrain": [CONFIG],
    "pretrain --check": [str(TOOLS.parent / RECIPE), "--check"],
    "plan": [CONFIG],
    "prepare_data": ["c.jsonl", "--output", "c", "--tokenizer", "bytes"],
    "convert": ["to-hf", "run", "hf"],
    "evaluate": ["run", "--perplexity"],
    "reproduce": ["quickstart"],
    "benchmark": ["clip"],
}


def test_all_tools_are_covered():
    names = {path.stem for path in TOOLS.glob("*.py")}
    assert {name.split()[0] for name in COMMANDS} == names


@pytest.mark.parametrize("name", COMMANDS)
def test_command_says_that_paddlenlp_is_missing(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "paddlenlp", None)
    path = TOOLS / f"{name.split()[0]}.py"
    main = runpy.run_path(str(path), run_name="tool").get("main")
    if main is None:
        from paddle_adagc.lab.cli.pretrain import main
    assert main(COMMANDS[name]) == 2
    error = capsys.readouterr().err
    assert "paddlenlp is not installed here: pip install -e '.[nlp]'" in error
    assert not list(tmp_path.iterdir())


def test_collectives_refuse_a_config_before_any_worker(
    tmp_path, monkeypatch, capsys
):
    pytest.importorskip("paddlenlp")
    main = runpy.run_path(str(TOOLS / "benchmark.py"), run_name="tool")["main"]
    path = str(tmp_path / "nope.yaml")
    monkeypatch.setattr("paddle_adagc.lab.benchmark.collectives.measure", None)
    assert main(["collectives", "--config", path]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f": there is no config file {path}\n")
