# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units that a model of the Paddle libraries names itself.

q, k, v and gate, up lie in one parameter each, and so do all experts of a
layer. Where they begin is read, under every optimizer, from the first of:

1. the model's ``build_muon_param_info_map`` (PaddleFormers, ERNIE);
2. its layers' ``muon_slice_specs`` (PaddleFleet);
3. marks ``hf_norm_groups`` of parameters (PaddleFleet);
4. classes of PaddleNLP, PaddleFormers and PaddleFleet, by name; and layers
   called ``up_gate_proj``, ``gate_up_proj`` or ``gate_up_fused_proj``, unless
   ``intermediate_size`` beside them says that they hold more.

A unit is a whole projection, as in the paper: heads share one norm, also where
Muon orthogonalises head by head. No function of the model cuts anything here:
what is read is its name, its arguments and the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.parallel.names import parameter_keys
from paddle_adagc.parallel.units import MARK, Units

Slices = tuple[Callable[..., Any], Mapping[str, Any]]
"""A function that cuts a parameter for Muon, and its arguments."""

_MODES = ("split_head", "split_qkv")  # what the second one knows wins
_QKV = ("q_proj", "k_proj", "v_proj")
_GATED_QKV = ("q_proj", "gate_proj", "k_proj", "v_proj")
_GATE_UP = ("gate_proj", "up_proj")
_OF_IN_PROJ = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_BY_KEY = {
    r"gate|up|fc1": _GATE_UP,
    r"qkv|query_key_value|c_attn": _QKV,
    r"in_proj": _OF_IN_PROJ,
}
"""What a key says of the groups of columns in its parameter."""

_BY_GROUP = {
    *("LlamaAttention", "LLamaAttention", "Ernie4_5Attention"),
    *("Qwen2Attention", "Qwen2MoeAttention", "Qwen3Attention"),
    *("Qwen3MoeAttention", "Gemma3Attention", "Glm4MoeAttention"),
    "MultiHeadAttention",  # of GPT and OPT
}
"""q of one group of heads, its k and v; then those of the next group."""

_BY_ROLE = {"ErnieAttention", "Phi3Attention"}
"""All of q, all of k, all of v; ``ErnieAttention`` if it shares k and v."""

_LOOKS_FUSED = re.compile(
    r"(qkv|up_gate|gate_up|query_key_value|c_attn|(^|\.)in_proj)"
)


class ModelUnits:
    """The ``units`` of ``bind`` that a model names itself.

    Args:
        model: As built, not wrapped.
        interleaves: Gate and up of fused experts lie interleaved in training
            (PaddleFormers' ``using_sonic_moe``): experts have one norm each.
    """

    def __init__(
        self, model: paddle.nn.Layer, interleaves: bool = False
    ) -> None:
        self._interleaves = interleaves
        self._slices: dict[str, Slices] = _slices_of(model)
        self._classes: dict[str, Units | None] = {}
        for layer in model.sublayers(include_self=True):
            for parameter, units in _of_class(layer):
                self._classes.setdefault(parameter.name, units)
        self.unknown: dict[str, str] = {}
        """Keys of parameters that may hold units, have one norm, and why."""

    def __call__(self, key: str, parameter: Tensor) -> Units | None:
        """Return the units of a parameter; None: it is one tensor."""
        if hasattr(parameter, MARK) or parameter.stop_gradient:
            return None
        found: Units | str | None = None
        if parameter.name in self._slices:
            found = _of_slices(parameter, *self._slices[parameter.name])
        has_groups = hasattr(parameter, "hf_norm_groups")
        if has_groups and not isinstance(found, Units):
            found = _of_groups(key, parameter)
        if not isinstance(found, Units):
            found = self._classes.get(parameter.name) or found
        if isinstance(found, Units):
            if found.experts and found.are_parts and self._interleaves:
                return Units(experts=True, key=found.key)
            return found
        module = key.rpartition(".")[0] or key
        looks_fused = _LOOKS_FUSED.search(module.rpartition(".")[2])
        if found is None and parameter.ndim == 2 and looks_fused:
            found = "its class is not known"
        if found:
            self.unknown[key] = found
        return None


_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer or an expert


def describe_tensors(model: paddle.nn.Layer) -> str:
    """Say how many tensors of a bound model are clipped; name its units."""
    keys, num_tensors, num_parameters = parameter_keys(model), 0, 0
    parts: dict[str, int] = {}
    for parameter in model.parameters():
        needs_clip = getattr(parameter, "need_clip", True) is not False
        if parameter.stop_gradient or not needs_clip:
            continue
        num_parameters += 1
        declared = getattr(parameter, MARK, None)
        if declared is None:
            num_tensors += 1
        else:
            key = _INDEX.sub("N", keys.get(parameter.name, parameter.name))
            units = declared.of(key, parameter.shape)
            num_tensors += len(units)
            parts[key] = parts.get(key, 0) + len(units)
    listed = "".join(f"; {n} units in {key}" for key, n in parts.items())
    return f"{num_tensors} tensors in {num_parameters} parameters{listed}"


def _slices_of(model: paddle.nn.Layer) -> dict[str, Slices]:
    """Return how Muon would cut parameters, by their names."""
    found: dict[str, Slices] = {}
    for mode in _MODES:
        options = _options_of(mode)
        for layer in model.sublayers(include_self=True):
            if hasattr(layer, "muon_slice_specs"):
                specs = layer.muon_slice_specs(options)
                for name, parameter in layer.named_parameters():
                    if name in specs:
                        found[parameter.name] = specs[name]
    return found | _slices_of_map(model, _options_of(_MODES[-1]))


def _options_of(mode: str) -> dict[str, Any]:
    return {"muon_qkv_update_mode": mode, "muon_ffn_split": True}


def _slices_of_map(model: Any, options: Mapping[str, Any]) -> dict[str, Slices]:
    """Read the map that the Trainer would give to Muon; without Muon, too."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "build_muon_param_info_map"):
        return {}
    before = getattr(config, "muon_configs", None)
    config.muon_configs = {"muon_exclude_patterns": [], **options}
    try:
        infos = model.build_muon_param_info_map(model, config)
    except (AttributeError, ImportError, KeyError):  # Paddle without Muon
        return {}
    finally:
        config.muon_configs = before
        if before is None:
            vars(config).pop("muon_configs", None)  # it is saved with the model
    found: dict[str, Slices] = {}
    for name, info in infos.items():
        cut = info.split_concat_func
        if cut is not None:
            function = getattr(cut, "func", cut)  # of a partial
            found[name] = function, getattr(cut, "keywords", {})
    return found


def _of_slices(
    parameter: Tensor,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Units | str | None:
    """Return the units that slices stand for, or why they are not known."""
    size, given = parameter.shape[-1], arguments.get
    name = getattr(function, "__name__", str(function))
    is_stack = parameter.ndim == 3
    widths = given("role_sizes") or given("split_dims")
    if widths and len(widths) in (3, 4):
        names = _QKV if len(widths) == 3 else _GATED_QKV
        if size % sum(widths) == 0:
            return _repeated(dict(zip(names, widths, strict=True)), size)
    elif {"heads", "groups", "head_dim", "v_head_dim"} <= arguments.keys():
        of_k, of_v = arguments["head_dim"], arguments["v_head_dim"]
        heads, groups = arguments["heads"], arguments["groups"]
        widths = [heads * of_k, groups * of_k, groups * of_v]
        if sum(widths) == size:
            return Units(parts=dict(zip(_QKV, widths, strict=True)))
    elif name == "ortho_ep_full_intermediate":
        is_cut = given("gate_up", False)
        return Units(experts=True, parts=_GATE_UP if is_cut else ())
    elif "gate_up" in name or "intermediate_size" in arguments:
        return Units(experts=is_stack, parts=_GATE_UP)
    elif is_stack or {"heads", "head_num"} & arguments.keys():
        return None  # experts are recognised; heads are of one projection
    return f"Muon cuts it by {name}, which is not known for its shape"


def _repeated(widths: dict[str, int], size: int) -> Units:
    repeats = size > sum(widths.values())
    return Units(widths=widths) if repeats else Units(parts=widths)


def _of_groups(key: str, parameter: Tensor) -> Units | str:
    """Read columns by group, in the order of the modules that they were."""
    groups: Sequence[Any] = parameter.hf_norm_groups
    size = parameter.shape[-1]
    owner = np.full(size, -1)
    for number, columns in enumerate(groups):
        owner[np.asarray(columns)] = number
    starts = np.flatnonzero(np.diff(owner, prepend=-2))
    order, widths = owner[starts], np.diff(starts, append=size)
    num = len(groups)
    first = {int(i): int(w) for i, w in zip(order[:num], widths, strict=False)}
    period = sum(first.values())
    if len(first) != num or size % period or (owner < 0).any():
        return "its hf_norm_groups do not follow each other"
    if not (owner.reshape([-1, period]) == owner[:period]).all():
        return "its hf_norm_groups do not repeat"
    names: Sequence[str] = [f"part_{i}" for i in range(num)]
    for pattern, of_pattern in _BY_KEY.items():
        if len(of_pattern) == num and re.search(pattern, key):
            names = of_pattern
    return _repeated({names[i]: width for i, width in first.items()}, size)


def _of_class(layer: Any) -> Iterator[tuple[Tensor, Units | None]]:
    """Yield parameters of a layer of a known class, and their units."""
    kinds = {
        kind.__name__
        for kind in type(layer).__mro__
        if kind.__name__ != "MultiHeadAttention"  # a name that anyone gives
        or kind.__module__.startswith("paddlenlp.")
    }
    qkv = _tensors(layer, "qkv_proj")
    if qkv:
        units = _of_attention(layer, kinds, qkv[0].shape[-1])
        yield from ((parameter, units) for parameter in qkv if units)
    if "GatedDeltaNet" in kinds:
        yield from _of_gated_delta_net(layer)
    for name in ("up_gate_proj", "gate_up_fused_proj", "gate_up_proj"):
        for parameter in _tensors(layer, name):
            width = getattr(layer, "intermediate_size", 0)
            if parameter.ndim < 3 and 2 * width % parameter.shape[-1]:
                continue  # not gate and up, or this rank's share of them
            if parameter.ndim < 3 or "ErnieMoeMLPFused" in kinds:
                is_stack = parameter.ndim == 3
                yield parameter, Units(experts=is_stack, parts=_GATE_UP)
    if "MoeExperts" in kinds and "GptOssExperts" not in kinds:
        key = "experts.{expert}.{part}.weight"
        units = Units(experts=True, parts=_GATE_UP, key=key)
        yield layer.gate_up_proj, units
        key = "experts.{expert}.down_proj.weight"
        yield layer.down_proj, Units(experts=True, key=key)


def _tensors(layer: Any, name: str) -> list[Tensor]:
    """Weight and bias of a linear map in a layer."""
    linear = getattr(layer, name, None)
    if not isinstance(linear, paddle.nn.Layer):
        return []
    found = (getattr(linear, leaf, None) for leaf in ("weight", "bias"))
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def _of_attention(layer: Any, kinds: set[str], size: int) -> Units | None:
    """Return q, k and v of a known class; its numbers are this rank's."""
    heads: int = getattr(layer, "num_heads", 0)
    heads = heads or getattr(layer, "num_attention_heads", 0)
    groups: int = getattr(layer, "num_key_value_heads", None) or heads
    width: int = getattr(layer, "head_dim", 0)
    is_by_role = bool(kinds & _BY_ROLE)
    if "ErnieAttention" in kinds and not layer.is_gqa:
        is_by_role, groups = False, heads
    elif not kinds & (_BY_ROLE | _BY_GROUP):
        return None
    if not (heads and width):
        return None
    if is_by_role:
        widths = [heads * width, groups * width, groups * width]
        is_right = sum(widths) == size
    else:  # q may hold a gate, too
        widths = [size // groups - 2 * width, width, width]
        is_right = size % groups == 0 and widths[0] % width == 0 < widths[0]
    if not is_right:
        return None
    return _repeated(dict(zip(_QKV, widths, strict=True)), size)


def _of_gated_delta_net(layer: Any) -> Iterator[tuple[Tensor, Units]]:
    of_qk, of_v, heads = layer.qk_dim, layer.v_dim, layer.num_value_heads
    widths = [2 * of_qk + of_v, of_v, heads, heads]
    parts = {
        name: width // layer.tp_size
        for name, width in zip(_OF_IN_PROJ, widths, strict=True)
    }
    for parameter in _tensors(layer, "in_proj"):
        if parameter.shape[-1] == sum(parts.values()):
            yield parameter, Units(parts=parts)
