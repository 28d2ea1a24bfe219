# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several of the paper's tensors inside one parameter."""

import math

import backends
import numpy as np
import paddle
import pytest
from helpers import assert_equal, clip_arrays, indexes_of, make_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import TensorLayout, with_units
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.parallel.units import Units

SHAPE = [5, 6, 7]
GATE_UP = Units(experts=True, parts=["gate", "up"], axis=0)


@st.composite
def units_and_shapes(draw):
    has_experts = draw(st.booleans())
    inner = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    parts = draw(st.lists(st.integers(1, 3), max_size=3))
    if not (has_experts or parts):
        parts = [1]
    axis = draw(st.integers(0, len(inner) - 1))
    repeats = bool(parts) and draw(st.booleans())
    if parts:
        inner[axis] = sum(parts) * draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 4)), *inner] if has_experts else inner
    named = {f"part{i}": share for i, share in enumerate(parts)}
    field = "widths" if repeats else "parts"
    units = Units(experts=has_experts, axis=axis, **{field: named})
    return units, shape


def by_slicing(units, values):
    """The units' values, by NumPy's own slicing."""
    experts = values if units.experts else values[None]
    for expert in experts:
        shares = [*(units.parts or units.widths).values()] or [1]
        if units.widths and expert.shape[units.axis] > sum(shares):
            axis = units.axis
            shape = list(expert.shape)
            shape[axis : axis + 1] = [-1, sum(shares)]
            ends = np.cumsum(shares)[:-1]
            for part in np.split(expert.reshape(shape), ends, axis + 1):
                whole = [*part.shape]
                whole[axis : axis + 2] = [-1]
                yield part.reshape(whole)
            continue
        ends = np.cumsum(shares) * expert.shape[units.axis] // sum(shares)
        yield from np.split(expert, ends[:-1], units.axis)


@given(units_and_shapes(), st.data())
@settings(max_examples=200, deadline=None)
def test_units_and_their_cuts_are_those_of_numpy(case, data):
    units, shape = case
    size = math.prod(shape)
    values = np.arange(size, dtype="float32").reshape(shape)
    begin = data.draw(st.integers(0, size))
    end = data.draw(st.integers(begin, size + 3))  # V2 pads
    made = units.of("a.b.w", shape)
    assert len({unit.key for unit in made}) == len(made)
    for unit, expected in zip(made, by_slicing(units, values), strict=True):
        assert unit.shape == expected.shape
        assert len(unit.cut(0, size)) == 1
        assert unit.place.num_runs == 1 or len(units.parts | units.widths) > 1
        found = values.reshape(-1)[indexes_of(unit)].reshape(unit.shape)
        np.testing.assert_array_equal(found, expected)
        pieces = unit.cut(begin, end)
        assert len(pieces) <= 3
        assert all(piece.size for piece in pieces)
        found = [
            begin + piece.start + k * piece.stride + i
            for piece in pieces
            for k in range(piece.num_runs)
            for i in range(piece.run)
        ]
        inside = (expected >= begin) & (expected < end)
        assert found == expected[inside].tolist()


class Net(paddle.nn.Layer):
    """A stack of experts, gate and up in one, and a tensor of its own."""

    def __init__(self, dtype="float32"):
        super().__init__()
        self.router = self.create_parameter([3], dtype=dtype)
        self.experts = self.create_parameter(SHAPE, dtype=dtype)
        self.down = self.create_parameter([4, 6], dtype=dtype)


DECLARED = {"^experts$": GATE_UP, "^down$": {"parts": {"q": 2, "k": 1}}}
KEYS = [
    "router",
    *(f"{e}.{part}.experts" for e in range(5) for part in ("gate", "up")),
    *("q.down", "k.down"),
]


def parts_of(arrays):
    """The same gradients as a list of tensors apart, in the order of KEYS."""
    router, experts, down = arrays
    gate_up = [part for e in experts for part in np.split(e, 2, 0)]
    return [router, *gate_up, down[:, :4], down[:, 4:]]


def parameters_of(arrays):
    """Parameters with these values."""
    parameters = make_parameters([array.shape for array in arrays])
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.set_value(array)
    return parameters


def gradients_of_step(step):
    rng = np.random.default_rng(step)
    arrays = [
        rng.normal(size=shape).astype("float32")
        for shape in ([3], SHAPE, [4, 6])
    ]
    arrays[1][step % 5, :3] *= 30 if step % 3 == 2 else 1
    arrays[2][:, 4:] *= 20 if step % 4 == 3 else 1
    arrays[1][(step + 2) % 5] = 0  # an expert without tokens
    if step == 7:
        arrays[1][1, 4, 2] = np.inf
    return arrays


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("init", ["warmup_min", "warmup_ema"])
def test_units_are_clipped_as_tensors_apart(init):
    fused, clip = Net(), ClipGradByAdaGC(init=init, t_start=4)
    clip.bind(fused, units=DECLARED)
    singles = parameters_of(parts_of([p.numpy() for p in fused.parameters()]))
    twin = ClipGradByAdaGC(init=init, t_start=4)
    for step in range(14):
        arrays = gradients_of_step(step)
        mine = clip_arrays(clip, fused.parameters(), arrays)
        theirs = clip_arrays(twin, singles, parts_of(arrays))
        assert_equal(parts_of(mine), theirs, rtol=2e-6, err_msg=f"at {step}")
        got, expected = clip.metrics(), twin.metrics()
        assert [*got["tensors"]] == KEYS
        for one, other in zip(
            got["tensors"].values(), expected["tensors"].values(), strict=True
        ):
            assert one == pytest.approx(other, rel=2e-6, nan_ok=True)
        assert got["nonfinite"] == expected["nonfinite"] == (step == 7)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("dtype", "is_strided"),
    [
        ("float32", True),
        *((dtype, False) for dtype in ("float64", "bfloat16", "float16")),
    ],
)
def test_gradients_of_every_dtype_and_layout(dtype, is_strided):
    fused, clip = Net(dtype), ClipGradByAdaGC(t_start=0)
    clip.bind(fused, units=DECLARED)
    for scale in (1.0, 2.0):
        arrays = [scale * a for a in gradients_of_step(0)]
        gradients = [paddle.to_tensor(a, dtype) for a in arrays]
        for i in (0, 2) if is_strided else ():
            gradients[i] = paddle.to_tensor(arrays[i].T.copy(), dtype).T
        clip([*zip(fused.parameters(), gradients, strict=True)])
    clipped = [g.astype("float32").numpy() for g in gradients]
    expected = [0.52 * array for array in parts_of(arrays)]
    rtol = 1e-5 if is_strided else 2e-2
    assert_equal(parts_of(clipped), expected, rtol=rtol)


def test_experts_take_no_more_launches_than_one_tensor(monkeypatch):
    cuda = backends.use_cuda(monkeypatch)
    model = paddle.nn.ParameterList(make_parameters([[48, 3, 5]]))
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(model, units={"^0$": "experts"})
    clip([(model[0], paddle.ones([48, 3, 5]))])
    assert cuda.emulated_calls(b"cuLaunchKernel") == 5


def test_overrides_name_single_experts():
    fused = Net()
    clip = ClipGradByAdaGC(
        t_start=0,
        overrides={r"^3\.up": {"lambda_rel": 3.0}, r"^1\.": None},
    )
    clip.bind(fused, units=DECLARED)
    arrays = gradients_of_step(0)
    clip_arrays(clip, fused.parameters(), arrays)
    clipped = clip_arrays(clip, fused.parameters(), [10 * a for a in arrays])
    h = dict.fromkeys(KEYS, 0.104) | dict.fromkeys(KEYS[3:5], 1.0)
    h["3.up.experts"] = 0.3
    parts = zip(h.values(), parts_of(arrays), strict=True)
    expected = [10 * factor * part for factor, part in parts]
    assert_equal(parts_of(clipped), expected, rtol=1e-6)
    assert "1.up.experts" not in clip.metrics()["tensors"]


def test_marks_and_names_are_recognised():
    class Experts(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.weight1 = self.create_parameter([2, 3, 3])
            self.weight2 = self.create_parameter([2, 3])

    for marks in ({}, {"expert": True}, {"adagc_units": "experts"}):
        name = "other" if marks else "grouped_gemm_experts"
        model = paddle.nn.Sequential((name, Experts()))
        for mark, value in marks.items():
            setattr(model[0].weight1, mark, value)
        clip = ClipGradByAdaGC()
        clip.bind(model)
        assert clip._progress.tensors.keys == [
            *(f"{name}.{e}.weight1" for e in range(2)),
            f"{name}.weight2",
        ]
    convolution = paddle.nn.Conv1D(2, 2, 2)
    clip = ClipGradByAdaGC()
    clip.bind(convolution)
    assert clip._progress.tensors.keys == ["weight", "bias"]
    clip.bind(convolution, units=lambda key, p: p.ndim == 3 and "experts")
    assert clip._progress.tensors.keys == ["0.weight", "1.weight", "bias"]


@pytest.mark.parametrize(
    ("units", "error", "message"),
    [
        ("experts", TypeError, "units is 'experts': give a dict of pattern"),
        ({"nothing": "experts"}, ValueError, "'nothing' matches no parameter"),
        ({"exp": "experts", "perts": "experts"}, ValueError, "matches both"),
        ({"experts": {"expert": True}}, ValueError, "did you mean 'experts'"),
        ({"experts": {"parts": "gate"}}, TypeError, "give a list of names"),
        ({"experts": {"parts": ["a", "a"]}}, ValueError, "holds a name twice"),
        ({"down": {"parts": ["a"] * 1, "axis": 2}}, ValueError, "no axis 2"),
        (
            {"down": {"parts": ["a", "b"], "key": "router"}},
            ValueError,
            "have the key 'router'",
        ),
        (
            {"down": {"parts": {"a": 1, "b": 1}, "widths": {"a": 1}}},
            ValueError,
            r"have parts=.* \(shares of the axis\) or widths=.*, not both",
        ),
    ],
)
def test_mistakes(units, error, message):
    model = Net()
    with pytest.raises(error, match=message):
        ClipGradByAdaGC().bind(model, units=units)
    clip = ClipGradByAdaGC()
    clip.bind(model)  # nothing of it stays with the model
    assert clip._progress.tensors.cuts is None


@pytest.mark.parametrize(
    ("topology", "marks", "first"),
    [
        ({"expert": Axis(1, 2)}, {"is_expert": True}, 4),
        ({"moe_sharding": Axis(1, 2)}, {"is_expert": True}, 0),
        ({"data": Axis(1, 2)}, {"is_expert": True, "is_unsynced": True}, 4),
        ({"data": Axis(1, 2)}, {"is_expert": True}, 0),
        ({"expert": Axis(1, 2)}, {}, 0),
        (
            {"expert": Axis(1, 2)},
            {"is_expert": True, "is_split_over_experts": True},
            0,
        ),
    ],
)
def test_numbers_of_a_rank_s_experts(topology, marks, first):
    model = paddle.nn.Layer()
    model.add_parameter("w", model.create_parameter([4, 2, 2]))
    layout = {model.w.name: TensorLayout(key="w", shape=(4, 2, 2), **marks)}
    units = {"parts": ["q", "k"], "experts": True, "key": "e.{expert}.{part}"}
    made = with_units(layout, model, {"w": units}, Topology(**topology))
    keys = [unit.key for unit in made[model.w.name].units]
    assert keys == [f"e.{first + i}.{part}" for i in range(4) for part in "qk"]


can_free = pytest.mark.skipif(
    not hasattr(paddle.Tensor, "_clear_to_zero_allocation"),
    reason="Paddle 3.1 cannot free a weight so",
)


@can_free
def test_weights_without_storage_and_in_sonicmoe_s_layout():
    """PaddleFleet's FP8 frees weights; SonicMoE shuffles gate and up."""
    states = []
    values = np.random.default_rng(0).normal(size=[2, 3, 4]).astype("float32")
    for is_changed in (False, True):
        layer = paddle.nn.Layer()
        layer.weight1 = layer.create_parameter([2, 3, 4])
        model = paddle.nn.Sequential(("grouped_gemm_experts", layer))
        clip = ClipGradByAdaGC(t_start=0)
        clip.bind(model)
        gradient = values
        if is_changed:
            layer.weight1._clear_to_zero_allocation()
            gradient = values[:, :, [0, 2, 1, 3]]
        clip([(layer.weight1, paddle.to_tensor(gradient))])
        states.append(clip.state_dict()["gamma"])
    assert [*states[0]] == [f"grouped_gemm_experts.{e}.weight1" for e in (0, 1)]
    for key, gamma in states[0].items():
        assert float(states[1][key]) == pytest.approx(float(gamma), rel=1e-6)


@pytest.mark.parametrize(
    ("attribute", "value", "units", "message"),
    [
        ("_weights_layout", "grouped", {"parts": ["a", "b"]}, "interleaves"),
        ("gather_output", True, {"parts": ["a", "b"]}, "a range of the whole"),
        ("gather_output", True, {"parts": ["a", "b"], "axis": 0}, None),
        ("gather_output", True, {"widths": {"a": 1, "b": 1}}, None),
        ("gather_output", False, {"parts": ["a", "b"]}, None),
    ],
)
def test_parts_that_do_not_lie_as_declared(attribute, value, units, message):
    """As in PaddleFleet's SonicMoE, and where ranks cut the parts' axis."""
    layer = paddle.nn.Linear(4, 4, bias_attr=False)
    layer.weight.is_distributed, layer.weight.split_axis = True, 1
    setattr(layer, attribute, value)
    clip = ClipGradByAdaGC()
    if message is None:
        clip.bind(layer, units={"weight": units})
        assert len(clip.state_dict()["gamma"]) == 2
        return
    with pytest.raises(ValueError, match=message):
        clip.bind(layer, units={"weight": units})
    clip.bind(layer)
    assert [*clip.state_dict()["gamma"]] == ["weight"]


def test_shares_may_be_numbers_of_the_model_s_config():
    config = {"heads": 3}
    units = Units(parts={"q": "heads", "k": 1}).with_numbers("w", config)
    assert units.parts == {"q": 3, "k": 1}
    for share in ("head", 0):
        with pytest.raises(ValueError, match=r"units of 'w': parts of q"):
            Units(parts={"q": share}).with_numbers("w", config)
