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
"""Families of decoders. A new family is a file and an entry below."""

from paddle_adagc.lab.models.families.ernie import ERNIE
from paddle_adagc.lab.models.families.family import Family
from paddle_adagc.lab.models.families.llama import LLAMA
from paddle_adagc.lab.models.families.mixtral import MIXTRAL
from paddle_adagc.lab.models.families.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (ERNIE, MIXTRAL, QWEN3, LLAMA)
}
"""Family by transformers' `model_type`; the more special ones come first."""

__all__ = ["FAMILIES", "Family"]
