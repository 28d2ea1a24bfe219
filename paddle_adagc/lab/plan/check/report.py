# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Findings of a check, and their text."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_WIDTH = 79


@dataclasses.dataclass
class CheckReport:
    """Findings about one recipe."""

    recipe: str
    """File of the recipe."""

    sections: list[tuple[str, list[str]]] = dataclasses.field(
        default_factory=list
    )
    """Headings with the lines below each."""

    mistakes: list[str] = dataclasses.field(default_factory=list)
    """Mistakes of the recipe, on any machine."""

    missing: list[str] = dataclasses.field(default_factory=list)
    """Things that this machine lacks for the run."""

    @property
    def exit_status(self) -> int:
        """0: the recipe is sound, whatever is missing here; 2: it is not."""
        return 2 if self.mistakes else 0

    def attempt(self, function: Callable[[], T]) -> T | None:
        """Call a function; record its refusal as a mistake and return None."""
        try:
            return function()
        except (ValueError, TypeError) as error:
            new = str(error).splitlines()
            self.mistakes += [line for line in new if line not in self.mistakes]
            return None

    def add(self, title: str, lines: Sequence[str]) -> None:
        """Append a section."""
        self.sections.append((title, [*lines]))

    def to_json(self) -> str:
        """Return the report as JSON."""
        values = {
            "recipe": self.recipe,
            "is_sound": not self.mistakes,
            "mistakes": self.mistakes,
            "sections": dict(self.sections),
            "missing": self.missing,
        }
        return json.dumps(values, indent=1, ensure_ascii=False)

    def text(self) -> str:
        """Return the report as text."""
        verdict = "has mistakes" if self.mistakes else "is sound"
        parts = [f"{self.recipe} {verdict}"]
        for title, lines in (
            ("Mistakes", [f"- {line}" for line in self.mistakes]),
            *self.sections,
            ("Missing here", [f"- {line}" for line in self.missing]),
        ):
            if lines:
                parts += ["", title, *(_indented(line) for line in lines)]
        if self.sections and not self.missing:
            parts += ["", "Nothing is missing here."]
        return "\n".join(parts)


def _indented(line: str) -> str:
    """Indent a line; wrap list entries, leave commands and tables alone."""
    if not line.startswith("- "):
        return f"  {line}"
    return textwrap.fill(
        line,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
