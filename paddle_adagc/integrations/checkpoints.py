# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip's state in the checkpoints of a Trainer.

The Trainer's state, which every checkpoint holds, gets a mark at each step: a
name of the run and the step. The clip's file holds the same mark. So a file
that was not saved with its checkpoint is noticed, also if a run without this
package has gone on from an older checkpoint in the same folder.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.adaptive_norm import load_adaptive_norm
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.progress import NewTensors
from paddle_adagc.files import LAST_FILES, is_finished
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.state import OtherClipError
from paddle_adagc.state_file import STATE_FILE, load_state, save_state

MissingState = Literal["raise", "start"]

_MARK = "adagc_run"  # in trial_params of a TrainerState
_FLASH_DEVICE = "/shared/dev/shm/flash"  # as in their utils/pdc_sdk.py
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")

HOW_TO_START = "missing_state='start' (adagc-run: --missing-state start)"


def newest_finished(output_dir: str, newest: str | None) -> str | None:
    """Return the newest checkpoint whose save was not cut; warn of others.

    Every rank has to call it, with the ``newest`` that the Trainer finds. A
    rank that has not the chosen one on its disk gets None. A FileNotFoundError
    says that no rank has any. Asynchronous saves write these files first, so
    that theirs cannot be judged.
    """
    folder = Path(output_dir)
    mine = {
        path.name: is_finished(path)
        for path in (folder.glob("checkpoint-*") if folder.is_dir() else ())
        if _CHECKPOINT.match(path.name)
    }
    parts = of_all_ranks((newest and Path(newest).name, mine))
    names = [name for name, _ in parts if name]
    if not names:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, and {folder} holds no checkpoint"
        )
    last = max(names, key=_step_of)
    finished = {name for _, part in parts for name in part if part[name]}
    older = [name for name in finished if _step_of(name) <= _step_of(last)]
    chosen = max(older, key=_step_of, default=last)
    if chosen != last:
        warnings.warn(
            f"{folder / last} is unfinished (no rank has its "
            f"{' and '.join(LAST_FILES)}): resuming from {folder / chosen}",
            stacklevel=4,
        )
    return str(folder / chosen) if (folder / chosen).is_dir() else None


def _step_of(name: str) -> int:
    found = _CHECKPOINT.match(name)
    return int(found[1]) if found else -1


def name_run(args: Any) -> str:
    """Return a new name of the run; every rank has to call it."""
    now = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
    name = f"{Path(args.output_dir).name}, {now}, {uuid.uuid4().hex[:8]}"
    return of_all_ranks(name)[0]


def mark_step(state: Any, run: str) -> None:
    """Write the run's name and step into the Trainer's state."""
    known = getattr(state, "trial_params", None) or {}
    mark = f"{run}, step {state.global_step}"
    state.trial_params = {**known, _MARK: mark}


def _origin(state: Any) -> dict[str, Any]:
    """Return what names a Trainer's state: its mark, and its step."""
    known = getattr(state, "trial_params", None) or {}
    return {"run": known.get(_MARK), "step": state.global_step}


def load_clip(
    clip: ClipGradBase,
    checkpoint: str | os.PathLike[str] | None,
    missing_state: MissingState,
    state: Any = None,
    new_tensors: NewTensors = "raise",
) -> None:
    """Resume a clip of this package from a checkpoint; others have no state.

    Every rank has to call it, with None where it knows of no checkpoint. The
    file that one rank finds serves all. Where none finds one, that of
    ``ClipGradByAdaptiveNorm`` is read. ``state``: the Trainer's, as loaded.

    Raises:
        FileNotFoundError: No rank finds a state of a clip.
        ValueError: It is damaged, or of another run, step, model or clip.
    """
    if not isinstance(clip, ClipGradByAdaGC):
        return
    wanted = None if state is None else _origin(state)
    states, missing = _states_of_ranks(checkpoint, wanted)
    name = STATE_FILE
    if missing and not states:
        with contextlib.suppress(FileNotFoundError):
            states = [load_adaptive_norm(clip, checkpoint)]
            name = "the state of ClipGradByAdaptiveNorm"
    if states:
        _check_origin(states[0], wanted, checkpoint)
        try:
            clip.set_state_dict(states[0], new_tensors=new_tensors)
        except ValueError as error:
            text = f"{name} in {checkpoint}: {error}"
            if not isinstance(error, OtherClipError):
                raise ValueError(text) from error
            if missing_state == "raise":
                raise ValueError(
                    f"{text}. To start with the warm-up give {HOW_TO_START}"
                ) from error
            warnings.warn(
                f"{text}. {type(clip).__name__} starts with its warm-up",
                stacklevel=3,
            )
            clip.restart_warmup()
    elif missing and missing_state == "raise":
        raise FileNotFoundError(
            f"{missing} To switch a run to this clip, which then starts "
            f"with its warm-up, give {HOW_TO_START}"
        )
    elif missing:
        clip.restart_warmup()


def _states_of_ranks(
    checkpoint: str | os.PathLike[str] | None, wanted: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], FileNotFoundError | None]:
    """Return the states that ranks find, and what one says that finds none."""
    mine: Any
    try:
        mine = _read(Path(checkpoint), wanted) if checkpoint else None
    except FileNotFoundError as error:
        mine = error
    except (OSError, ValueError) as error:
        mine = ValueError(str(error))
    found = of_all_ranks(mine)
    states = [answer for answer in found if isinstance(answer, dict)]
    for rank, answer in enumerate(found):
        if isinstance(answer, ValueError):
            raise ValueError(f"rank {rank}: {answer}")
        if isinstance(answer, dict) and answer != states[0]:
            raise ValueError(
                f"ranks find different {STATE_FILE} in {checkpoint}: copy that "
                "of one rank to the others, or remove those of another run"
            )
    missing = (x for x in found if isinstance(x, FileNotFoundError))
    return states, next(missing, None)


def _read(checkpoint: Path, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """Read the state of a checkpoint.

    A save that was cut at its end left it beside the folder.
    """
    places = (checkpoint, STATE_FILE), _beside(checkpoint)
    states = [load_state(*p) for p in places if Path(*p).exists()]
    if not states:
        return load_state(checkpoint)
    for state in states:
        if wanted is None or state.get("origin") == wanted:
            return state
    return load_state(checkpoint)  # the file beside is another run's


def _beside(checkpoint: Path) -> tuple[Path, str]:
    """Return folder and name of a state whose checkpoint is being saved."""
    return checkpoint.parent, f"{STATE_FILE}.{checkpoint.name}"


def _check_origin(
    state: dict[str, Any], wanted: dict[str, Any] | None, checkpoint: Any
) -> None:
    """Notice a clip's state that was not saved with the Trainer's."""
    origin = state.get("origin")
    if not origin or not wanted:
        return  # saved by hand
    if origin["step"] and not wanted["step"]:
        warnings.warn(
            f"the Trainer begins at step 0, and its clip goes on after "
            f"{origin['step']} steps: to begin anew, remove {STATE_FILE} from "
            f"{checkpoint}, and give {HOW_TO_START}",
            stacklevel=4,
        )
    elif origin != wanted:
        raise ValueError(
            f"{STATE_FILE} in {checkpoint} was not saved with this "
            f"checkpoint: it is marked {origin['run']!r}, and the Trainer "
            f"resumes step {wanted['step']}, marked {wanted['run']!r}. Put the "
            "right file there; or remove it, and start the clip with its "
            f"warm-up: {HOW_TO_START}"
        )


def stage_clip(
    clip: ClipGradBase | None, args: Any, state: Any
) -> list[tuple[Path, Path]]:
    """Write the whole model's state beside the Trainer's next checkpoint.

    Every rank has to call it. The checkpoint lies in ``output_dir``, or with
    ``flash_device_save_steps`` in the memory of each node. Returns what
    :func:`place_clip` takes once the Trainer has saved: till then a kill leaves
    no folder that looks like a checkpoint.
    """
    if not isinstance(clip, ClipGradByAdaGC):
        return []
    saved = {**clip.full_state_dict(), "origin": _origin(state)}
    step, folders = state.global_step, []
    flash_steps = getattr(args, "flash_device_save_steps", 0)
    is_in_flash = flash_steps > 0 and step % flash_steps == 0
    if is_in_flash and args.local_process_index == 0:
        flash = os.environ.get("PDC_FLASH_DEVICE", _FLASH_DEVICE)
        folders.append(Path(flash) / f"checkpoint-{step}")
    is_kept = not is_in_flash or step % max(args.save_steps, 1) == 0
    if is_kept and dist.get_rank() == 0:
        folders.append(Path(args.output_dir) / f"checkpoint-{step}")
    return [
        (save_state(saved, *_beside(folder)), folder / STATE_FILE)
        for folder in folders
    ]


def place_clip(staged: Sequence[tuple[Path, Path]]) -> list[tuple[Path, Path]]:
    """Put states into the checkpoints that the Trainer has saved by now.

    Returns the others: the Trainer may save later, in another process.
    """
    waiting = []
    for path, target in staged:
        if target.parent.is_dir():
            path.replace(target)
        else:
            waiting.append((path, target))
    return waiting
