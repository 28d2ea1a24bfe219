# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Base classes of the models: PaddleNLP's, or PaddleFormers' without it.

With PaddleFormers' the models can be planned and checked, not trained.
"""

import importlib.util
from typing import ClassVar

if importlib.util.find_spec("paddlenlp") is None:
    from paddleformers.transformers import PretrainedConfig as _Config
    from paddleformers.transformers import PretrainedModel, register_base_model
    from paddleformers.transformers.model_utils import PipelinePretrainedModel

    class PretrainedConfig(_Config):
        """PaddleFormers' config, which also takes PaddleNLP's names."""

        attribute_map: ClassVar = {
            **_Config.attribute_map,
            "tensor_parallel_degree": "tensor_model_parallel_size",
        }

else:
    from paddlenlp.transformers import (  # type: ignore[no-redef]
        PretrainedConfig,
        PretrainedModel,
        register_base_model,
    )
    from paddlenlp.transformers.model_utils import PipelinePretrainedModel

__all__ = [
    "PipelinePretrainedModel",
    "PretrainedConfig",
    "PretrainedModel",
    "register_base_model",
]
