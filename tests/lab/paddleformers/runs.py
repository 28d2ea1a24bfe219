# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of PaddleFormers' ``ernie_pretrain`` that tests start on gloo ranks."""

import json
from pathlib import Path

from lab.paddleformers.cpu import TOY_MODEL, TOY_RUN, import_workflow

RECIPES = (
    Path(__file__).resolve().parents[3] / "configs" / "ernie_10b_a1.4b_fp8"
)


def write_toy(folder, vocab_size=TOY_MODEL["vocab_size"]):
    """Write a small model and data.

    Returns:
        Overrides with which a recipe takes them.
    """
    import numpy as np
    from paddleformers.data.indexed_dataset import make_builder

    config = json.loads((RECIPES / "config.json").read_text())
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(
        json.dumps({**config, **TOY_MODEL})
    )
    builder = make_builder(str(folder / "tokens.bin"), "mmap", np.uint16)
    random = np.random.default_rng(0)
    for _ in range(200):
        builder.add_item(random.integers(0, vocab_size, 50))
        builder.end_document()
    builder.finalize(str(folder / "tokens.idx"))
    return [
        *TOY_RUN,
        f"model_name_or_path={folder / 'model'}",
        f"input_dir=1.0 {folder / 'tokens'}",
    ]


def pretrain(recipe, overrides, check_places=False):
    """Run a recipe on this rank.

    Returns:
        ``losses`` per micro-batch; ``first`` and ``last`` weights by name;
        ``grad_clip``, the class of the clip that the optimizer ends up with.
        With a clip of this package also its ``state``, and ``norms``: per step
        and by name, the squared norm of this rank's part of the gradient, and
        the whole tensor's norm as the clip has it. ``places``: see
        :func:`breaking_places`.
    """
    workflow = import_workflow()
    workflow.ErnieBotTokenizer = _Tokenizer
    from paddle_adagc.lab.paddleformers import trainer as ours
    from paddle_adagc.lab.paddleformers.launch import run_recipe

    workflow.PretrainingTrainer = _recording(workflow.PretrainingTrainer)
    ours.ClippingTrainer = _recording(ours.ClippingTrainer)
    run_recipe(RECIPES / recipe, overrides)
    trainer = _Tokenizer.trainer
    result = {
        "losses": trainer.losses,
        "first": trainer.first,
        "last": _weights(trainer.model),
        "grad_clip": type(trainer.optimizer._grad_clip).__name__,
    }
    if hasattr(trainer, "clip"):
        result["state"] = trainer.clip.full_state_dict()
        result["norms"] = trainer.norms
    if check_places:
        result["places"] = breaking_places(trainer)
    return result


class _Tokenizer:
    """The run takes nothing but these numbers from its tokenizer."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def save_pretrained(self, folder):
        pass


def _recording(kind):
    class Recording(kind):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            _Tokenizer.trainer = self
            self.losses, self.norms = [], []
            self.first = _weights(self.model)
            if hasattr(self, "clip"):
                self.clip._dygraph_clip = self._observed(self.clip)

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.losses.append(float(loss))
            return loss

        def _observed(self, clip):
            clip_gradients = clip._dygraph_clip

            def observed(pairs):
                pairs = list(pairs)
                (keys, parts) = ([], [])
                for parameter, gradient in pairs:
                    keys.append(
                        clip._table.keys[clip._table.slots([parameter])[0]]
                    )
                    parts.append(
                        float(gradient.astype("float64").square().sum())
                    )
                result = clip_gradients(pairs)
                whole = clip.metrics()["tensors"]
                self.norms.append(
                    {
                        key: (part, whole[key]["norm"])
                        for key, part in zip(keys, parts, strict=True)
                    }
                )
                return result

            return observed

    return Recording


def _weights(model):
    from paddle_adagc.lab.paddleformers.names import global_expert_names

    with global_expert_names(model):
        return {k: v.numpy().copy() for k, v in model.state_dict().items()}


def breaking_places(trainer):
    """Try the three places where PaddleFormers takes the clip for GlobalNorm.

    Returns:
        Per place, what happens as the launcher sets things up (None: nothing
        bad), and what happens otherwise.
    """
    import paddle
    from paddleformers.cli.train.ernie_pretrain.src.callbacks import (
        moe_logging_callback,
    )

    def attempt(function):
        try:
            function()
        except (AttributeError, AssertionError) as error:
            return str(error)
        return None

    def wrap():
        trainer._wrap_distributed_optimizer(
            paddle.optimizer.AdamW(
                parameters=trainer.model.parameters(), grad_clip=trainer.clip
            )
        )
        assert "_global_norm" not in vars(trainer.clip), "_global_norm replaced"

    def log():
        callback = moe_logging_callback.MoeLoggingCallback(trainer.optimizer)
        logs = {}
        callback.on_log(trainer.args, trainer.state, trainer.control, logs)
        assert set(logs) == {"clipped_fraction", "nonfinite"}, logs

    found = {
        "_wrap_distributed_optimizer": [attempt(wrap)],
        "_new_gradclip": [attempt(trainer._new_gradclip)],
        "MoeLoggingCallback": [attempt(log)],
    }
    trainer.args.max_grad_norm, trainer.args.log_global_grad_norm = 1.0, True
    del trainer.clip.stat
    found["_wrap_distributed_optimizer"].append(attempt(wrap))
    found["_new_gradclip"].append(attempt(trainer._new_gradclip))
    found["MoeLoggingCallback"].append(attempt(log))
    return found
