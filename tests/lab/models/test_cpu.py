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
"""The MKL setting for AMD processors."""

import pytest

from paddle_adagc.lab.models import cpu


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("vendor_id : AuthenticAMD\nflags : sse avx2 fma\n", True),
        ("vendor_id : AuthenticAMD\nflags : sse fma\n", False),
        ("vendor_id : GenuineIntel\nflags : sse avx2 fma\n", False),
    ],
)
def test_reads_the_processor(tmp_path, cpuinfo, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert cpu._is_amd_with_avx2(path) is expected
    assert not cpu._is_amd_with_avx2(tmp_path / "missing")


def test_sets_the_variable_once_and_keeps_the_users(monkeypatch):
    monkeypatch.setattr(cpu, "_is_amd_with_avx2", lambda: True)
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    assert not cpu.use_avx2_matmul()
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE")
    assert cpu.use_avx2_matmul()
    assert cpu.os.environ["MKL_DEBUG_CPU_TYPE"] == "5"
    monkeypatch.setattr(cpu, "_is_amd_with_avx2", lambda: False)
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE")
    assert not cpu.use_avx2_matmul()
    assert "MKL_DEBUG_CPU_TYPE" not in cpu.os.environ
