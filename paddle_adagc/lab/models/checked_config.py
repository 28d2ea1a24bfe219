# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleNLP model configs whose options a config section checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from paddlenlp.transformers import PretrainedConfig

from paddle_adagc.checks import check_choice


class CheckedConfig(PretrainedConfig):
    """A PaddleNLP config with checked options.

    Subclasses set `options`, a section (see `paddle_adagc.lab.section`) with
    the architecture's options; each becomes an attribute of the config.

    Args:
        **values: Options, and PaddleNLP's own keys (`dtype`,
            `tensor_parallel_degree`, ...). PaddleNLP also accepts misspelt
            keys; `from_fields` refuses them.

    Raises:
        ValueError: A value is out of range, or two do not fit.
    """

    options: ClassVar[type[Any]]

    def __init__(self, **values: Any) -> None:
        names = self.field_names()
        own = {name: values.pop(name) for name in names if name in values}
        checked = dataclasses.asdict(self.options(**own))
        if "tie_word_embeddings" in checked:
            values["tie_word_embeddings"] = checked["tie_word_embeddings"]
        super().__init__(**values)
        for name, value in checked.items():
            setattr(self, name, value)

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the architecture's options, in their order."""
        return tuple(field.name for field in dataclasses.fields(cls.options))

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[str, Any],
        presets: Mapping[str, Mapping[str, Any]],
        **layout: Any,
    ) -> Any:
        """Make the config that a run's `model` section describes.

        Args:
            fields: The section: options of this config, which replace those
                of the preset that `preset` names; `architecture` is ignored.
            presets: Options by the preset's name.
            **layout: PaddleNLP's own keys, such as `tensor_parallel_degree`.

        Raises:
            ValueError: An unknown preset or option (the nearest is named), or
                a value out of range.
        """
        values = {k: v for k, v in fields.items() if k != "architecture"}
        preset = values.pop("preset", None)
        if preset is not None:
            check_choice("model.preset", preset, presets)
            values = {**presets[preset], **values}
        try:
            cls.options(**values)
        except ValueError as error:
            lines = [f"model: {line}" for line in str(error).splitlines()]
            raise ValueError("\n".join(lines)) from error
        return cls(**values, **layout)
