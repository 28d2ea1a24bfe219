# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time, memory and operator calls of a clip step, clip against clip."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import paddle
from paddle import Tensor, _C_ops
from paddle.base import core
from paddle.nn.clip import _clip_by_global_norm_using_mp_type
from tqdm import tqdm

from adagc_lab.markdown import markdown_table
from adagc_lab.models.families import preset
from adagc_lab.models.shapes import Shape, parameter_shapes
from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.kernels.operators import OperatorTensors, dense_float

Pairs = list[tuple[Tensor, Tensor]]
REFERENCE = "GlobalGC"
FLOOR = "memory floor"
LISTS: dict[str, dict[str, Any]] = {
    "ernie-10b-a1.4b": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 256,
        "intermediate_size": 128,
    },
    "llama2-1.3b": {"hidden_size": 1024, "intermediate_size": 2048},
    "llama2-7b": {"hidden_size": 768, "intermediate_size": 2048},
    "qwen3-1.7b": {"hidden_size": 512, "intermediate_size": 1536},
    "mixtral-8x1b": {"hidden_size": 256, "intermediate_size": 704},
}
"""The paper's models: preset -> widths that fit this machine. Layers and
experts, and so the number of tensors, are the full model's."""

_VOCABULARY = 1000
_MIB = 2**20
_FAR = 10.0
"""Gradients have a norm of about 1: thresholds of the tensors left alone."""

_NEAR = 0.8
"""Thresholds of the tensors that are clipped."""


def device_seconds() -> float:
    """Seconds on a clock, once the device has done all that it was given.

    A GPU works behind the host, whose clock alone would time the launches.
    """
    if paddle.device.get_device() != "cpu":
        paddle.device.synchronize()
    return time.perf_counter()


def recipe_shapes(name: str) -> list[Shape]:
    """Shapes of a list of :data:`LISTS`, without the routers.

    As the paper counts tensors: ERNIE's list has 3,828.
    """
    config = preset(name, vocab_size=_VOCABULARY, **LISTS[name])
    return [
        shape
        for key, shape in parameter_shapes(config).items()
        if not key.endswith("mlp.gate.weight")
    ]


def make_pairs(shapes: Iterable[Shape], dtype: str = "float32") -> Pairs:
    """Parameters, and random gradients of these shapes, each of norm about 1.

    Parameters are small: no clip but AGC looks at their values.
    """
    paddle.seed(0)
    zero = paddle.nn.initializer.Constant(0.0)
    return [
        (
            paddle.create_parameter([1], "float32", default_initializer=zero),
            (paddle.randn(shape) / math.sqrt(math.prod(shape))).astype(dtype),
        )
        for shape in shapes
    ]


class Contender(NamedTuple):
    """One way to do what is timed."""

    step: Callable[[], Any]
    prepare: Callable[[Any], None]
    """Called before each step, untimed, with what the round gives."""


def contenders(pairs: Pairs, clipped: np.ndarray) -> dict[str, Contender]:
    """Ways to clip these gradients of norm about 1; the ``clipped`` are scaled.

    - AdaGC in its adaptive phase, also through Paddle's operators alone, as
      without a compiler;
    - Paddle's clips: GlobalGC, which scales every tensor, and a fixed threshold
      per tensor, which has no 16-bit kernel on a CPU;
    - a loop that asks the device for every tensor's norm, as the
      ``ClipGradByAdaptiveNorm`` of Paddle's develop branch does;
    - the memory floor: one read of all gradients, one read-write of those that
      are clipped, over one contiguous block each, by BLAS and NumPy.

    Each is prepared with the gradients as they were.
    """
    gamma = np.where(clipped, _NEAR, _FAR)

    restore = functools.partial(_restore, pairs)

    def adagc() -> Contender:
        model = paddle.nn.ParameterList([parameter for parameter, _ in pairs])
        clip: Any = ClipGradByAdaGC(t_start=0)
        clip.bind(model)
        keys = [name for name, _ in model.named_parameters()]
        start = dict(zip(keys, gamma, strict=True))

        def prepare(originals: Sequence[Tensor]) -> None:
            clip.set_state_dict({"step": 1, "gamma": start, "config": {}})
            restore(originals)

        return Contender(functools.partial(clip, pairs), prepare)

    def by_operators() -> Any:
        with mock.patch.object(kernels, "BACKENDS", (OperatorTensors,)):
            return slow.step()

    def global_gc() -> Any:
        # No 16-bit norms on a CPU: there by Paddle's own switch to float32.
        previous = _clip_by_global_norm_using_mp_type(True)
        try:
            return by_global_norm(pairs)
        finally:
            _clip_by_global_norm_using_mp_type(previous)

    slow = adagc()
    by_global_norm = paddle.nn.ClipGradByGlobalNorm(_NEAR)
    by_norm = paddle.nn.ClipGradByNorm(_NEAR)
    waiting_loop = functools.partial(_waiting_loop, pairs, gamma.tolist())
    found = {
        FLOOR: Contender(_memory_floor(pairs, clipped), restore),
        "AdaGC": adagc(),
        "AdaGC, operators only": Contender(by_operators, slow.prepare),
        REFERENCE: Contender(global_gc, restore),
        "ClipGradByNorm": Contender(lambda: by_norm(pairs), restore),
        "loop that waits per tensor": Contender(waiting_loop, restore),
    }
    is_half = pairs[0][1].element_size() < 4
    if is_half and paddle.device.get_device() == "cpu":
        del found["ClipGradByNorm"]
    return found


def _restore(pairs: Pairs, originals: Sequence[Tensor]) -> None:
    for (_, gradient), original in zip(pairs, originals, strict=True):
        paddle.assign(original, gradient)
    # An optimizer asks this right before it calls its clip: so Python's
    # objects are in the processor's cache, values not.
    for parameter, gradient in pairs:
        parameter.stop_gradient, gradient.is_selected_rows()


def _waiting_loop(pairs: Pairs, thresholds: Iterable[float]) -> None:
    for (_, gradient), threshold in zip(pairs, thresholds, strict=True):
        norm = _C_ops.squared_l2_norm(dense_float(gradient)).sqrt()
        if norm > threshold:
            gradient.multiply_((threshold / norm).astype(gradient.dtype))


def _memory_floor(pairs: Pairs, clipped: np.ndarray) -> Callable[[], None]:
    """Read as many bytes as the gradients have, and write the clipped ones."""
    sizes = np.array([int(np.prod(g.shape)) for _, g in pairs])
    # Two 16-bit values are as many bytes as one of float32.
    share = pairs[0][1].element_size() / 4
    whole = np.ones(int(share * sizes.sum()), np.float32)
    part = whole[: int(share * sizes[clipped].sum())]

    def touch() -> None:
        np.dot(whole, whole)
        np.multiply(part, np.float32(1.0), out=part)

    return touch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One contender's result on one list of tensors."""

    contender: str
    num_tensors: int
    num_values: int
    seconds: tuple[float, ...]
    """One per repetition."""

    operator_calls: int
    """Paddle operators called in a step; on a GPU one may be several launches
    (:mod:`adagc_lab.benchmark.counts`)."""

    peak_bytes: int
    """Paddle's memory on the device in a step, above that before the step."""


def compare(
    shapes: Sequence[Shape],
    clipped_share: float,
    repetitions: int,
    dtype: str = "float32",
) -> list[Row]:
    """Time all contenders on one list, interleaved, in one process.

    ``clipped_share`` of the tensors is scaled. One repetition more comes first
    and is not counted.
    """
    pairs = make_pairs(shapes, dtype)
    originals = [gradient.clone() for _, gradient in pairs]
    clipped = np.zeros(len(pairs), bool)
    clipped[: round(clipped_share * len(pairs))] = True
    np.random.default_rng(0).shuffle(clipped)
    competing = contenders(pairs, clipped)
    rounds = tqdm(range(repetitions + 1), leave=False, unit="round")
    seconds = take_turns(competing, (originals for _ in rounds), 1)
    return [
        Row(
            contender=name,
            num_tensors=len(pairs),
            num_values=sum(map(math.prod, shapes)),
            seconds=tuple(seconds[name]),
            operator_calls=_operator_calls(contender, originals),
            peak_bytes=_peak_bytes(contender, originals),
        )
        for name, contender in competing.items()
    ]


def take_turns(
    contenders: Mapping[str, Contender], rounds: Iterable[Any], num_untimed: int
) -> dict[str, list[float]]:
    """Time one step of each contender in every round, in random order.

    Python's garbage collector runs before, and not within. The first
    ``num_untimed`` rounds do not count. Gives name -> seconds of each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for number, given in enumerate(rounds):
            for name in order.sample([*contenders], len(contenders)):
                contenders[name].prepare(given)
                begin = device_seconds()
                contenders[name].step()
                elapsed = device_seconds() - begin
                if number >= num_untimed:
                    seconds[name].append(elapsed)
    finally:
        gc.enable()
    return seconds


def median_ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Divide round by round."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def format_quartiles(values: Sequence[float], spec: str) -> str:
    """Format the median and the quartiles: ``"21.1 (20.5-21.6)"``."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:{spec}} ({low:{spec}}-{high:{spec}})"


def _operator_calls(contender: Contender, originals: Sequence[Tensor]) -> int:
    """Paddle's own count of kernels called in one step."""
    contender.prepare(originals)
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    core.clear_low_precision_op_list()
    try:
        contender.step()
        calls = core.get_low_precision_op_list()
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
    return sum(int(n) for counts in calls.values() for n in counts.split(","))


def _peak_bytes(contender: Contender, originals: Sequence[Tensor]) -> int:
    contender.prepare(originals)
    is_cpu = paddle.device.get_device() == "cpu"
    stat = "host_memory_stat" if is_cpu else "device_memory_stat"
    before = getattr(core, f"{stat}_current_value")("Allocated", 0)
    getattr(core, f"{stat}_reset_peak_value")("Allocated", 0)
    result = contender.step()
    peak = getattr(core, f"{stat}_peak_value")("Allocated", 0)
    del result
    return max(peak - before, 0)


def to_markdown(rows: Sequence[Row]) -> str:
    head = ["clip", "ms, median (quartiles)", "of GlobalGC"]
    head += ["of the memory floor", "operator calls", "peak memory (MiB)"]
    seconds = {row.contender: row.seconds for row in rows}
    return markdown_table(
        head,
        [
            (
                row.contender,
                format_quartiles([1e3 * s for s in row.seconds], ".1f"),
                f"{median_ratio(row.seconds, seconds[REFERENCE]):.2f}",
                f"{median_ratio(row.seconds, seconds[FLOOR]):.2f}",
                f"{row.operator_calls:,}",
                f"{row.peak_bytes / _MIB:.1f}",
            )
            for row in rows
        ],
    )
