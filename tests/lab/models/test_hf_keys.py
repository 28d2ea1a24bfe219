# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json, alone, missing, null, and stated twice.

The rows come from the lists of keys in `adagc_lab.models.hf_keys`. Where
transformers is installed, its logits decide about each accepted row.
"""

import json
import warnings

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.hf import config_from_hf, config_to_hf, state_to_hf
from adagc_lab.models.hf_keys import FAMILIES, NO_LOGIT
from adagc_lab.models.rank_weights import to_numpy
from safetensors.numpy import save_file
from transformers_twin import torch_and_transformers

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,  # all families' defaults of key heads divide it
    "num_key_value_heads": 16,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
EXPERTS = {
    "moe_num_experts": 6,
    "moe_top_k": 3,
    "moe_intermediate_size": 20,
    "router_aux_loss_coef": 0.5,
}
BASES = {
    "llama": SIZES,
    "qwen3": {**SIZES, "qk_norm": True},
    "mixtral": {**SIZES, **EXPERTS, "intermediate_size": 20},
    "ernie4_5_moe": {
        **SIZES,
        **EXPERTS,
        "moe_num_shared_experts": 2,
        "moe_correction_bias": True,
        "rope_layout": "interleaved",
        "tie_word_embeddings": True,
    },
}
OTHER = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 32,
    "rope_theta": 50.0,
    "rms_norm_eps": 0.25,
    "initializer_range": 0.1,
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 28,
    "moe_num_shared_experts": 1,
    "router_aux_loss_coef": 0.125,
}
"""Another value of each option; a flag has one."""

IN_TRAINING = {
    "max_position_embeddings",
    "initializer_range",
    "router_aux_loss_coef",
}
"""Options that change no logit."""

NOT_IN_SHAPES = {"rope_theta", "rms_norm_eps", "moe_top_k"}
"""Options that the weights' shapes do not tell, and change logits."""


def base_options(family):
    """A config.json with every fact once, and none of `hf_keys`' maps."""
    options = config_to_hf(DecoderConfig(**BASES[family]))
    del options["rope_parameters"]
    return options


def with_keys(options, fact, values):
    """The same with a fact under these keys alone."""
    changed = {k: v for k, v in options.items() if k not in fact.all_keys}
    for key, value in values.items():
        name, _, inner = key.partition(".")
        if inner:
            changed[name] = {**changed.get(name, {}), inner: value}
        else:
            changed[key] = value
    return changed


def other_value(name, fact, base):
    """A value that the base and the default do not have."""
    if name:
        return OTHER.get(name, not base)
    if isinstance(fact.default, bool):
        return not fact.default
    if isinstance(fact.default, float | int):
        return fact.default + 2
    return {"a": 1} if isinstance(fact.default, dict) else "other"


class Refused(str):
    """A row's expectation: a refusal with this message."""


def rows(family):
    """Yield option, fact, case, the keys' values and what they mean."""
    base = base_options(family)
    kind = FAMILIES[family]
    for name, fact in (
        *kind.facts.items(),
        *(("", fact) for fact in kind.fixed),
    ):
        first, default = fact.keys[0], fact.default
        usual = base.get(first, default)
        other = other_value(name, fact, usual)
        is_required = bool(name) and default is None and not fact.may_be_null
        missing = default
        if is_required:
            missing = Refused(f"holds no {first}: add it")
        elif fact.supported and default not in fact.supported:
            missing = Refused(f"{first}={default}: the decoder supports")
        yield name, fact, "missing", {}, missing
        for key in fact.all_keys:
            is_read = key in fact.keys
            null = None if fact.may_be_null and is_read else missing
            yield name, fact, "null", {key: None}, null
            unread = Refused(f"{key}=.*: this family .* it, write {first}")
            value, found = default, missing
            if is_required:
                value, found = usual, usual if is_read else unread
            yield name, fact, "default", {key: value}, found
            found = other if name else Refused(f"{key}=.* decoder supports")
            yield (
                *(name, fact, "other", {key: other}),
                found if is_read else unread,
            )
            if key == first:
                continue
            found = other if name else Refused(f"{first}=.* decoder supports")
            yield name, fact, "equal", {first: other, key: other}, found
            if usual is not None:
                twice = {first: usual, key: other}
                found = Refused(
                    f"{first}=.* and {key}=.* the same fact: remove"
                )
                yield name, fact, "different", twice, found


def expected_option(name, value, options):
    """The decoder's value of an option, with its own defaults."""
    if name == "router_aux_loss_coef":
        return value * options.get("moe_k", options.get("num_experts_per_tok"))
    if value is None and name == "head_dim":
        return options["hidden_size"] // options["num_attention_heads"]
    if value is None and name == "num_key_value_heads":
        return options["num_attention_heads"]
    return value


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "case", ["missing", "null", "default", "other", "equal", "different"]
)
def test_every_key_is_read_or_refused(family, case):
    base, num_rows = base_options(family), 0
    for name, fact, of_row, values, expected in rows(family):
        if of_row != case:
            continue
        num_rows += 1
        options, is_refused = with_keys(base, fact, values), False
        try:
            found = config_from_hf(options, source="c.json")
        except ValueError as error:
            found, is_refused = str(error), True
        if isinstance(expected, Refused):
            assert is_refused, (values, expected)
            assert found.startswith("c.json: ")
            with pytest.raises(ValueError, match=expected):
                config_from_hf(options)
        else:
            assert not is_refused, (values, found)
            if name:
                value = expected_option(name, expected, options)
                assert getattr(found, name) == value, (values, expected)
    assert num_rows > 10 or case in ("equal", "different")
    assert num_rows


@pytest.mark.parametrize("family", FAMILIES)
def test_a_warning_names_keys_of_which_nothing_is_known(family):
    base = base_options(family)
    plain = config_from_hf(base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = config_from_hf(
            {**dict.fromkeys(NO_LOGIT - base.keys(), 1), "_x": 1, **base},
            source="c.json",
        )
    for name in plain.field_names():
        assert getattr(same, name) == getattr(plain, name)
    rope = {"rope_type": "default", "beta_fast": 32}
    foreign = {"logit_scale": 3.0, "x": None, "rope_parameters": rope}
    with pytest.warns(
        UserWarning,
        match=r"c\.json: nothing is known of logit_scale, "
        r"rope_parameters\.beta_fast: ",
    ):
        config_from_hf({**base, **foreign}, source="c.json")


WINDOW, SWITCH = "sliding_window", "use_sliding_window"
FULL = "full_attention"


@pytest.mark.parametrize(
    ("families", "changes", "message"),
    [
        ("llama ernie4_5_moe qwen3", {WINDOW: 9, SWITCH: False}, ""),
        ("qwen3", {WINDOW: 9, "max_window_layers": 1}, ""),
        ("qwen3", {SWITCH: True}, "use_sliding_window=true: .* write false"),
        ("qwen3", {WINDOW: 9, SWITCH: True}, "use_sliding_window=true: "),
        (
            "llama ernie4_5_moe mixtral",
            {WINDOW: 9},
            "sliding_window=9: .* null",
        ),
        ("mixtral", {WINDOW: 9, SWITCH: False}, "=9 .MixtralFor.* this key al"),
        ("qwen3 llama", {"layer_types": [FULL] * 2}, ""),
        (
            "qwen3",
            {"layer_types": [FULL, "sliding_attention"]},
            "for each of 2",
        ),
        ("qwen3", {"layer_types": [FULL]}, "layer_types=.* for each of 2"),
        ("ernie4_5_moe", {"moe_layer_end_index": -1}, ""),
        ("ernie4_5_moe", {"moe_layer_end_index": 1}, ""),
        ("ernie4_5_moe", {"moe_layer_end_index": 0}, "=0: .* write -1 or 1"),
        ("llama", {"rope_scaling": [1]}, r"rope_scaling=\[1\]: use a map"),
        ("llama", {"rope_scaling": {FULL: {}}}, "full_attention is a map"),
        ("llama", {"rope_scaling": {"type": "linear"}}, 'type="linear": '),
        ("llama", {"rope_theta": 1e31}, r"rope_theta=1e\+31: not in"),
        ("llama", {"num_hidden_layers": 1001}, "num_hidden_layers=1001: not"),
        ("ernie4_5_moe", {"moe_num_experts": 1001}, "moe_num_experts=1001"),
        (
            "ernie4_5_moe",
            {"moe_num_experts": 1000, "num_hidden_layers": 31},
            "layers=31 with 1000 .* 30,000",
        ),
    ],
)
def test_what_a_value_alone_does_not_tell(families, changes, message):
    for family in families.split():
        options = base_options(family) | changes
        if message:
            with pytest.raises(ValueError, match=message):
                config_from_hf(options)
        else:
            config_from_hf(options)


@pytest.mark.slow
def test_the_lists_hold_every_key_of_transformers():
    _, transformers = torch_and_transformers()
    for family in FAMILIES.values():
        name = family.class_name.replace("ForCausalLM", "Config")
        options = getattr(transformers, name)(rope_scaling=None).to_dict()
        rope = options.pop("rope_parameters", None) or {}
        options |= {
            f"rope_parameters.{key}": value for key, value in rope.items()
        }
        keys = {key for key in options if not key.startswith("_")}
        assert not keys - family.known_keys() - {"rope_scaling"}


def transformers_logits(options, value, weights, ids, folder):
    """Logits of transformers; versions before 5 know fewer names."""
    torch, transformers = torch_and_transformers()
    if transformers.__version__ < "5":
        for name in ("rope_parameters", "rope_scaling"):
            if name in options:
                options = {**options, "rope_theta": value}
                del options[name]
        if "num_experts" in options and options["model_type"] == "mixtral":
            options = {**options, "num_local_experts": value}
    (folder / "config.json").write_text(json.dumps(options))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    kind = getattr(transformers, options["architectures"][0])
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.from_numpy(ids)).logits.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_accepted_rows_have_the_logits_of_transformers(family, tmp_path):
    torch_and_transformers()
    base = base_options(family)
    plain = DecoderForCausalLM(config_from_hf(base))
    plain.eval()
    ids = np.random.default_rng(0).integers(0, 48, [2, 12])
    num_rows = num_changed = 0  # changed: the base's logits are others
    for name, fact, case, values, expected in rows(family):
        if isinstance(expected, Refused) or not name or name in IN_TRAINING:
            continue
        options = with_keys(base, fact, values)
        takes_null = fact.may_be_null and family in ("llama", "mixtral")
        if None in values.values() and not takes_null:
            continue  # transformers' class fails
        paddle.seed(0)
        model = DecoderForCausalLM(config_from_hf(options))
        model.eval()
        state = {k: to_numpy(v) for k, v in model.state_dict().items()}
        weights = {
            key: np.ascontiguousarray(array)
            for key, array in state_to_hf(state, model.config).items()
        }
        logits = model(paddle.to_tensor(ids)).numpy()
        found = transformers_logits(options, expected, weights, ids, tmp_path)
        what = f"{case} {values}"
        np.testing.assert_allclose(logits, found, 0, 2e-4, err_msg=what)
        num_rows += 1
        if case == "other" and name in NOT_IN_SHAPES:
            plain.set_state_dict(model.state_dict())
            differing = abs(plain(paddle.to_tensor(ids)).numpy() - found)
            assert differing.max() > 1e-2, what
            num_changed += 1
    assert num_rows > 20
    assert num_changed >= 2
