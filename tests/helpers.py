# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What several tests need: parameters, gradients, one call of a clip."""

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import paddle
import pytest

NUMPY = tuple(map(int, np.__version__.split(".")[:2]))


def slow_but(kept, values, long=()):
    """Parameters of a test: ``kept`` is fast, others slow, some ``long``."""
    assert {kept, *long} <= {*values}
    slow, slower = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.long]
    return [
        value
        if value == kept
        else pytest.param(value, marks=slower if value in long else slow)
        for value in values
    ]


def long_but(kept, values):
    """Parameters of a slow test: those that are not in ``kept`` are long."""
    assert {*kept} < {*values}
    return [
        value if value in kept else pytest.param(value, marks=pytest.mark.long)
        for value in values
    ]


TINY_LLAMA = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
"""Arguments of ``LlamaConfig``, and of its relatives."""


def run_python(folder, *arguments, **environment):
    """Run Python in a folder, with more of an environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def make_parameters(shapes, dtype="float32"):
    """Parameters of the given shapes, all zero."""
    zero = paddle.nn.initializer.Constant(0.0)
    return [
        paddle.create_parameter(shape, dtype, default_initializer=zero)
        for shape in shapes
    ]


def clip_arrays(clip, parameters, arrays):
    """Call ``clip`` on NumPy gradients; None stands for a missing one."""
    gradients = [
        None if array is None else paddle.to_tensor(array, dtype="float32")
        for array in arrays
    ]
    pairs = [*zip(parameters, gradients, strict=True)]
    return [
        None if gradient is None else gradient.astype("float64").numpy()
        for _, gradient in clip(pairs)
    ]


def feed(clip, norms):
    """Feed norms ``[num_steps, num_tensors]`` as one-element tensors.

    None is a missing gradient. Gives the clipped values and the gammas after
    each step.
    """
    parameters = make_parameters([[1]] * len(norms[0]))
    out, history = [], []
    for row in norms:
        arrays = [None if n is None else np.float32([n]) for n in row]
        clipped = clip_arrays(clip, parameters, arrays)
        out.append([None if c is None else c[0] for c in clipped])
        history.append(gammas(clip).tolist())
    return out, history


def assert_equal(mine, theirs, **tolerance):
    """Hold lists of arrays against each other, bit by bit without tolerance."""
    for ours, others in zip(mine, theirs, strict=True):
        if tolerance:
            np.testing.assert_allclose(ours, others, **tolerance)
        else:
            np.testing.assert_array_equal(ours, others)


def strided_gradient(value, dtype="float32"):
    """Parameter ``[6, 4]`` and its gradient, which is not contiguous.

    The gradient of a weight that is only used as ``w.T`` is a transposed view.
    ``value`` is its first entry.
    """
    (weight,) = make_parameters([[6, 4]], dtype)
    rows = np.arange(1.0, 25.0).reshape([6, 4])
    rows[0, 0] = value
    gradient = paddle.to_tensor(rows.T.copy(), dtype).T
    assert not gradient.is_contiguous()
    return weight, gradient


def gammas(clip):
    """The gammas of a clip in the order of its tensors, as float64."""
    return np.array(
        [float(value) for value in clip.state_dict()["gamma"].values()]
    )


@contextlib.contextmanager
def no_waiting_for_the_device(monkeypatch):
    """Fail on every way to read a tensor's value back to the host."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("a tensor's value was read back to the host")

    names = (
        "item numpy tolist cpu __float__ __int__ __bool__ __index__ "
        "__array__ __len__ __format__ __str__ __repr__"
    )
    with monkeypatch.context() as patch:
        for name in names.split():
            patch.setattr(paddle.Tensor, name, refuse)
        yield


def load_golden(path):
    """Config, weights by name, and the other arrays of a golden checkpoint."""
    with np.load(path) as file:
        arrays = dict(file)
    options = json.loads(str(arrays.pop("config")))
    weights = {
        key.removeprefix("weight:"): arrays.pop(key)
        for key in list(arrays)
        if key.startswith("weight:")
    }
    return options, weights, arrays


def product_rounding(dtype):
    """Paddle's operators before 3.3 round a float16 product twice."""
    if dtype == "float16" and paddle.__version__ < "3.3":
        return {"rtol": 1e-3, "atol": 6e-8}
    return {"rtol": 0}


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def indexes_of(unit):
    """Places of a unit's values in its flat parameter, in row-major order."""
    start, run, num_runs, stride = unit.place
    places = start + stride * np.arange(num_runs)[:, None] + np.arange(run)
    return places.reshape(-1)
