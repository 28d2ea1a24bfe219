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
"""Which tensors of a decoder are multiplied in FP8."""

from paddle import nn

from paddle_adagc.lab.models.fp8.linear import is_float8
from paddle_adagc.lab.models.rank_weights import parameters_by_key


def quantized_parameters(model: nn.Layer) -> list[str]:
    """Return the names, in the whole model, of weights multiplied in FP8.

    Read from the layers, not from the config.

    Args:
        model: A decoder, spread or not; of a spread one this rank's part.
    """
    weights = {
        layer.weight.name for layer in model.sublayers() if is_float8(layer)
    }
    return [
        key
        for key, parameter in parameters_by_key(model).items()
        if parameter.name in weights
    ]
