# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip communicates in a real run, by the ledger.

    python -m paddle.distributed.launch --nproc_per_node 2 \
        collectives_run.py RESULT OUTPUT_DIR CONFIG [key=value ...]

trains a few steps and writes, as JSON, what the clip of rank 0 communicated in
its last warm-up step and in its last step.
"""

from __future__ import annotations

import sys
from typing import Any

from paddlenlp.trainer import TrainerCallback
from paddlenlp.utils.log import logger

from paddle_adagc.clips.measured import MeasuredClip
from paddle_adagc.files import atomic_write_json
from paddle_adagc.integrations.trainer import innermost
from paddle_adagc.lab.benchmark.ledger import CommunicationLedger
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.processes import (
    is_first_process,
    leave,
    start_processes,
)
from paddle_adagc.lab.train.run import build_trainer


def record_communication(config: RunConfig) -> CommunicationLedger:
    """Train as ``config`` says, and record what the clip communicates.

    Every process has to call it. Nothing is saved.

    Returns:
        This rank's ledger, one step per optimizer step.
    """
    start_processes(config)
    ledger = CommunicationLedger()
    trainer = build_trainer(config)
    trainer.add_callback(_Watch(ledger))
    trainer.train()
    return ledger


class _Watch(TrainerCallback):
    """Records what the innermost optimizer's clip communicates.

    Only when training begins: until then fleet may still replace the clip.
    """

    def __init__(self, ledger: CommunicationLedger) -> None:
        self._ledger = ledger

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        optimizer = innermost(kwargs["optimizer"])
        clip = optimizer._grad_clip
        if isinstance(clip, MeasuredClip):  # what it measures is not the clip's
            clip.clip = self._ledger.watch(clip.clip)
        else:
            optimizer._grad_clip = self._ledger.watch(clip)


def rows(ledger: CommunicationLedger, step: int) -> list[dict[str, Any]]:
    """Return what a step did, as JSON."""
    return [
        {
            "collective": collective,
            "group": group,
            "bytes": num_bytes,
            "calls": calls,
        }
        for (collective, group, num_bytes), calls in sorted(
            ledger.collectives(step).items()
        )
    ]


def main() -> None:
    """Run the command."""
    logger.set_level("WARNING")
    result, output_dir, path, *overrides = sys.argv[1:]
    config = load_config(path, [*overrides, f"train.output_dir={output_dir}"])
    ledger = record_communication(config)
    if is_first_process():
        last_warm_up = config.clip.get("t_start", 1) - 1
        facts = {
            "warm_up": rows(ledger, last_warm_up),
            "adaptive": rows(ledger, config.train.max_steps - 1),
        }
        atomic_write_json(result, facts)


if __name__ == "__main__":
    main()
    leave(0)
