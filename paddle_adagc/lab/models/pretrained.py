# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Base classes of the models: PaddleNLP's, or PaddleFormers' without it.

With PaddleFormers' the models can be planned and checked, not trained.
"""

import importlib.util

if importlib.util.find_spec("paddlenlp") is None:
    from paddleformers.transformers import (
        PretrainedConfig,
        PretrainedModel,
        register_base_model,
    )
    from paddleformers.transformers.model_utils import PipelinePretrainedModel
else:
    from paddlenlp.transformers import (
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
