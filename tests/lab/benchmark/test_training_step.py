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

from pathlib import Path

from paddle_adagc.lab.benchmark import training_step
from paddle_adagc.lab.train.parse import load_config

CONFIG = Path(__file__).parents[3] / "configs/proxy/llama_low_noise.yaml"


def test_copies_train_in_turn(monkeypatch):
    monkeypatch.setattr(training_step, "_T_START", 2)
    config = load_config(
        CONFIG,
        ["model.hidden_size=16", "train.batch_size=2", "data.seq_length=8"],
    )
    rows = training_step.compare(config, 4)
    assert [row.clip for row in rows] == ["no clip", "GlobalGC", "AdaGC"]
    assert all(len(row.seconds) == 4 for row in rows)
    assert rows[1].of_reference == (1.0,) * 4
    table = training_step.to_markdown(rows)
    assert "| AdaGC |" in table
