# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's settings in the files of a training command.

They are a section ``clip`` of a YAML or JSON file, at its top or nested (such
as ``trainer_args: {clip: ...}``), or ERNIE's former keys ``adaptive_norm_...``.
Files are read, never changed.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paddle_adagc.checks import check_choice, check_positive

Settings = dict[str, Any]
"""``clip`` and :data:`OF_TRAINERS`: those that there are."""

DEFAULT = "adagc-record"
"""Folder of a record without a Trainer, in the command's working folder."""

OF_RECORDS = ("skip_above", "stop_on")
"""Keys of the section ``clip`` that a Trainer's record takes."""

OF_TRAINERS = ("missing_state", "new_tensors", "units", *OF_RECORDS)
"""Keys of the section ``clip`` that a Trainer's mixin takes."""

MARK = "_adagc_settings"
"""Attribute of a Trainer's arguments: those that were parsed with them."""

SUFFIXES = (".json", ".yaml", ".yml")
OLD = "adaptive_norm_"
"""Beginning of the arguments of ERNIE's former clip."""

_OLD_ARGUMENTS = {
    "adaptive_norm_clip_ratio": "lambda_rel",
    "adaptive_norm_start_clip_steps": "t_start",
}
_MAY_HOLD = re.compile(r"\bclip[\"']?\s*:|\badaptive_norm_clip\b")
_HOLDS = re.compile(
    r"(?m)^\s*[\"']?(clip[\"']?\s*:\s*(\{|#|$)|adaptive_norm_clip\b)"
    r"|\"clip\"\s*:\s*\{"
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_LARGEST = 1 << 20  # bytes; larger files are data


CLIPS = ("adagc", "global_norm")
"""Values of the key ``name``; the second is the Trainer's own GlobalGC."""


def make_clip(name: str = "adagc", **values: Any) -> Any:
    """Make the clip of a section ``clip``.

    Raises:
        TypeError, ValueError: Another name, or a wrong argument.
    """
    if check_choice("clip.name", name, CLIPS) == "adagc":
        from paddle_adagc import ClipGradByAdaGC

        return ClipGradByAdaGC(**values)
    if unknown := values.keys() - {"lambda_abs"}:
        raise ValueError(f"clip 'global_norm' takes no {sorted(unknown)[0]!r}")
    from paddle.nn import ClipGradByGlobalNorm

    bound = check_positive("lambda_abs", values.get("lambda_abs", 1.0))
    return ClipGradByGlobalNorm(bound)


def _arguments(name: str) -> set[str]:
    if name == "global_norm":
        return {"lambda_abs"}
    from paddle_adagc import ClipGradByAdaGC

    return {*inspect.signature(ClipGradByAdaGC).parameters}


def take_settings(
    values: dict[str, Any], where: str, notes: list[str]
) -> Settings:
    """Take the clip's settings out of a Trainer's, which lose these keys.

    They are the section ``clip``, with :data:`OF_TRAINERS` in it; ``units``
    beside it; and ERNIE's former keys. Returns those that there are; ``notes``
    gets a line for what was found in the file ``where``.

    Raises:
        ValueError: ``clip`` is no section, or ``units`` stand twice.
    """
    found: Settings = {}
    if "clip" in values:
        section = values.pop("clip")
        if not isinstance(section, dict):
            raise ValueError(
                f"{where}: clip is {section!r}, not a section of the clip's "
                "arguments: clip: {lambda_abs: 1.0}"
            )
        clip = found["clip"] = {"name": "adagc", **_with_numbers(section)}
        for name in OF_TRAINERS:
            if name in clip:
                found[name] = clip.pop(name)
        if "units" in values:
            if "units" in found:
                raise ValueError(f"{where}: units stand twice, also in clip")
            found["units"] = values.pop("units")
        notes.append(f"found the section clip in {where}")
    old = {k: values.pop(k) for k in [*values] if str(k).startswith(OLD)}
    if old.get("adaptive_norm_clip"):
        became = {
            new: old[key] for key, new in _OLD_ARGUMENTS.items() if key in old
        }
        clip = found.get("clip", {})
        found["clip"] = {"name": "adagc", **_with_numbers(became), **clip}
        notes.append(
            f"found {', '.join(old)} in {where}: they become {became}; "
            "beta is the paper's 0.99 (ERNIE's clip had 0.98)"
        )
    elif old:
        notes.append(f"found {', '.join(old)} in {where}: not used")
    return found


def settings_in(values: Mapping[Any, Any]) -> Settings:
    """Return the keys of a mapping that are ours, not others of that name."""
    found = {k: v for k, v in values.items() if str(k).startswith(OLD)}
    section = values.get("clip")
    if isinstance(section, Mapping) and _is_section(section):
        found["clip"] = section
        if isinstance(values.get("units"), Mapping):  # else not ours
            found["units"] = values["units"]
    return copy.deepcopy(found)


def combined(found: Settings, options: Mapping[str, Any]) -> Settings:
    """Return settings with the command's options over those of a file.

    Another clip by ``--clip`` keeps the file's arguments that it takes, too.
    """
    settings: Settings = {"clip": {"name": "adagc"}, **found}
    rest = dict(options)
    for choice in ("missing_state", "new_tensors", *OF_RECORDS):
        if choice in rest:
            settings[choice] = rest.pop(choice)
    name = rest.pop("clip", settings["clip"]["name"])
    if name != settings["clip"]["name"]:
        taken = _arguments(check_choice("clip.name", name, CLIPS))
        kept = {k: v for k, v in settings["clip"].items() if k in taken}
        settings["clip"] = {**kept, "name": name}
    settings["clip"] = {**settings["clip"], **_with_numbers(rest)}
    return settings


def read_settings(path: str, notes: list[str]) -> Settings | None:
    """Read the settings that a file holds, at its top or nested; None: none.

    Raises:
        ImportError: The file is YAML and seems to hold some; PyYAML is missing.
        ValueError: It seems to hold some and cannot be read, or holds two.
    """
    text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    if not _MAY_HOLD.search(text):
        return None
    try:
        documents = _parse(text, path)
    except ImportError as error:
        if not _HOLDS.search(text):
            return None
        raise ImportError(
            f"{error}: {path} has a section 'clip'; pip install pyyaml"
        ) from error
    except (ValueError, RecursionError) as error:
        if not _HOLDS.search(text) or _is_json_lines(text):
            return None
        reason = str(error).splitlines()[0] if str(error) else "too deep"
        raise ValueError(
            f"{path} has a section 'clip' and cannot be read: {reason}"
        ) from error
    found: list[Settings] = []
    for section in _mappings(documents):
        ours = settings_in(section)
        if settings := take_settings(ours, path, notes):
            found.append(settings)
        if "clip" in section and not settings:
            shown = repr(section["clip"])
            notes.append(
                f"{path} has clip: {shown if len(shown) < 60 else '...'}, no "
                "section of a clip's arguments: left to the command"
            )
    if any(settings != found[0] for settings in found):
        raise ValueError(f"{path} has two sections 'clip': keep one")
    return found[0] if found else None


def named_files(words: Iterable[str]) -> Iterator[str]:
    """Yield YAML and JSON files that words of a command name.

    As a word, ``KEY=PATH``, ``--KEY=PATH`` or ``@PATH``.
    """
    for word in words:
        for path in (word, word.removeprefix("@"), word.partition("=")[2]):
            if is_settings_file(path):
                yield path
                break


def is_settings_file(path: str) -> bool:
    """Tell whether a path names a YAML or JSON file that is no data."""
    try:
        return (
            path.endswith(SUFFIXES)
            and os.path.isfile(path)
            and os.path.getsize(path) <= _LARGEST
        )
    except (OSError, ValueError):
        return False


def shown_path(path: str) -> str:
    """Return a path as it is read best: relative where it lies below here."""
    here = os.path.join(os.getcwd(), "")
    return path.removeprefix(here)


def all_words(command: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command with ``bash -c TEXT``, and its scripts'.

    The text of an option such as ``--prompt`` is no command.
    """
    own: list[str] = []
    scripts: list[str] = []
    is_option = False
    for word in command:
        own.append(word)
        is_text, is_option = is_option, word.startswith("--")
        if word.endswith((".sh", ".bash")) and os.path.isfile(word):
            scripts += _split(Path(word).read_text("utf-8", errors="replace"))
        elif any(map(str.isspace, word)) and not (is_text or is_option):
            own += _split(word)
    return own, scripts


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _is_section(section: Mapping[Any, Any]) -> bool:
    """A section has a key that is, or nearly is, a clip's argument."""
    known = {"name", *OF_TRAINERS, *_arguments("adagc")}
    near = difflib.get_close_matches
    # Other programs' sections have a name, too: a model's, say.
    name = str(section.get("name", "adagc"))
    if not near(name, CLIPS, cutoff=0.75):
        return any(key in known - {"name"} for key in section)
    return not section or any(
        near(str(key), known, cutoff=0.84) for key in section
    )


def _with_numbers(section: Mapping[Any, Any]) -> dict[Any, Any]:
    """YAML reads ``5e-1`` as text, JSON does ``.5``."""
    return {
        key: float(value)
        if isinstance(value, str) and _NUMBER.fullmatch(value)
        else value
        for key, value in section.items()
    }


def _mappings(values: Any) -> Iterator[dict[Any, Any]]:
    """Yield a mapping and those within it; not those in a clip's section."""
    if isinstance(values, list):
        for value in values:
            yield from _mappings(value)
    elif isinstance(values, dict):
        yield values
        for key, value in values.items():
            if key != "clip" and isinstance(value, dict):
                yield from _mappings(value)


def _parse(text: str, path: str) -> list[Any]:
    """Parse a file; YAML may have several documents and unknown tags."""
    if path.endswith(".json"):
        return [json.loads(text)]
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads what has an unknown tag as if it had none."""

    def untagged(loader: Any, _: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return node.value

    Loader.add_multi_constructor("", untagged)
    try:
        return [*yaml.load_all(text, Loader)]
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def _is_json_lines(text: str) -> bool:
    try:
        json.loads(text.strip().partition("\n")[0])
    except (ValueError, RecursionError):
        return False
    return True
