# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A gradient of another size than its parameter: nothing beside it changes."""

import numpy as np
import paddle
import pytest
from backends import use
from helpers import make_parameters

from paddle_adagc import ClipGradByAdaGC

BACKENDS = "host", "cuda", "operators"
SHAPE = [4, 8, 8]


class Experts(paddle.nn.Layer):
    """Experts in one parameter, and a matrix beside them."""

    def __init__(self, shape=SHAPE):
        super().__init__()
        self.up = self.create_parameter(shape)
        self.head = self.create_parameter([3, 5])


def make_clip(model):
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(model, units={"up": "experts"})
    return clip


def call(clip, model, up, head=None):
    head = paddle.ones([3, 5]) if head is None else head
    clip([(model.up, up), (model.head, head)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [[2, 8, 8], [6, 8, 8], [8, 8, 4], [256]])
def test_another_shape_is_refused_and_nothing_is_written(
    monkeypatch, backend, shape
):
    """Of a view of a larger buffer, whose other values stay."""
    use(backend, monkeypatch)
    model = Experts()
    clip = make_clip(model)
    call(clip, model, paddle.ones(SHAPE))
    before = clip.state_dict()
    buffer = paddle.full([1000], 10.0)
    size = int(np.prod(shape))
    view = buffer[:size].reshape(shape) if size < 1000 else None
    with pytest.raises(ValueError, match=r"up has the shape \[.*\[4, 8, 8\]"):
        call(clip, model, view)
    assert (buffer.numpy() == 10).all()
    assert clip.state_dict()["step"] == before["step"]
    call(clip, model, paddle.ones(SHAPE))  # and goes on


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_first_gradient_has_the_parameter_s_shape(monkeypatch, backend):
    use(backend, monkeypatch)
    model = Experts()
    with pytest.raises(ValueError, match=r"up has the shape \[2, 8, 8\]"):
        call(make_clip(model), model, paddle.ones([2, 8, 8]))


def test_a_sparse_gradient_has_no_units():
    paddle.seed(0)
    model = paddle.nn.Embedding(6, 4, sparse=True)
    clip = ClipGradByAdaGC()
    clip.bind(model, units={"weight": "experts"})
    optimizer = paddle.optimizer.SGD(
        0.1, parameters=model.parameters(), grad_clip=clip
    )
    model(paddle.to_tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"weight is sparse.*sparse=False"):
        optimizer.step()


def test_an_optimizer_of_a_second_model_with_fewer_experts():
    """Made under a guard, so that it has the first one's names."""
    with paddle.utils.unique_name.guard():
        first = Experts([8, 8, 8])
    with paddle.utils.unique_name.guard():
        second = Experts([2, 8, 8])
    clip = make_clip(first)
    for model in (first, second):
        optimizer = paddle.optimizer.SGD(
            0.1, parameters=model.parameters(), grad_clip=clip
        )
        (model.up.sum() + model.head.sum()).backward()
        if model is first:
            optimizer.step()
    with pytest.raises(ValueError, match=r"up has the shape \[2, 8, 8\].*\[8"):
        optimizer.step()


GUARD = 64  # values


class Guarded:
    """A gradient in the middle of a buffer, contiguous or strided."""

    def __init__(self, random, shape, dtype, is_strided):
        shape, size = list(shape), int(np.prod(shape))
        swapped = [*shape[:-2], shape[-1], shape[-2]] if is_strided else shape
        values = random.standard_normal(size + 2 * GUARD).astype("float32")
        self.buffer = paddle.to_tensor(values).astype(dtype)
        self.view = self.buffer[GUARD : GUARD + size].reshape(swapped)
        if is_strided:
            axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            self.view = self.view.transpose(axes)
        self._before = self._around()

    def _around(self):
        values = self.buffer.astype("float32").numpy()
        return values[:GUARD], values[-GUARD:]

    def assert_untouched(self):
        for before, after in zip(self._before, self._around(), strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_sequence_of_shapes_writes_beside_a_gradient(monkeypatch, backend):
    """1,000 sequences: shapes, dtypes, views, strides, missing gradients."""
    use(backend, monkeypatch)
    random = np.random.default_rng(0)
    num_refused = num_steps = 0
    for _ in range(1000):
        shape = [int(n) for n in random.integers(1, 7, 3)]
        model = Experts(shape)
        clip = ClipGradByAdaGC(t_start=int(random.integers(0, 3)))
        kinds = ["experts", {"parts": ["a"]}, {"widths": {"q": shape[-1]}}]
        clip.bind(model, units={"up": kinds[random.integers(3)]})
        dtype = str(random.choice(["float32", "float64", "bfloat16"]))
        for _ in range(4):
            drawn = list(shape)
            if random.random() < 0.3:
                drawn[random.integers(3)] = int(random.integers(1, 9))
            up = Guarded(random, drawn, dtype, random.random() < 0.3)
            head = Guarded(random, [3, 5], dtype, random.random() < 0.3)
            given = None if random.random() < 0.1 else up.view
            fits = given is None or drawn == shape
            try:
                clip([(model.up, given), (model.head, head.view)])
                num_steps += 1
                assert fits, (shape, drawn)
            except ValueError:
                num_refused += 1
                assert not fits, (shape, drawn)
            up.assert_untouched()
            head.assert_untouched()
    assert num_refused > 500
    assert num_steps > 2000


def test_a_gradient_without_values_is_an_error_in_every_step():
    """The C pass would follow a null pointer."""
    (parameter,) = make_parameters([[4]])
    clip = ClipGradByAdaGC()
    clip([(parameter, paddle.ones([4]))])
    cleared = paddle.ones([4])
    cleared._clear()
    with pytest.raises(RuntimeError):
        clip([(parameter, cleared)])
