# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keys of Hugging Face's `config.json`: what each says about our decoder.

Every key that the config classes of transformers 4.55 and 5 know is read, has
values that the decoder supports, or changes no logit. A fact may stand under
several keys: then they have to agree.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

Options = Mapping[str, Any]

MAX_COUNT = 1000  # of layers, and of experts in one
MAX_SIZE = 2**31 - 1
_LIMITS = {"rope_theta": 1e30}
_ROPE_MAPS = ("rope_parameters", "rope_scaling")
_FLOATS = ("float32", "float16", "bfloat16", "float64")


class Fact(NamedTuple):
    """What one or several keys of config.json say."""

    keys: tuple[str, ...]
    """Keys that the family's class reads; `map.key` is a key of a map."""

    default: Any = None
    """Value without a key, that of transformers; None: a key is required,
    unless `may_be_null`."""

    supported: tuple[Any, ...] = ()
    """Values that the decoder supports; empty: it takes them as an option."""

    may_be_null: bool = False  # null is a value of its own
    also: tuple[str, ...] = ()
    """Keys of other families for the same fact; they may only agree."""

    reason: str = ""  # why other values are not supported

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Every key that states the fact."""
        return (*self.keys, *self.also)

    def value(self, stated: Options) -> Any:
        """Return what a :func:`flattened` config says, or refuse it."""
        read = [key for key in self.keys if stated.get(key) is not None]
        key = read[0] if read else self.keys[0]
        is_null = self.may_be_null and key in stated
        value = stated[key] if read or is_null else self.default
        for other in self.all_keys:
            if stated.get(other) in (None, value):
                continue
            if not read:
                raise ValueError(
                    f"{shown(stated, other)}: this family does not read it, "
                    f"write {key}"
                )
            raise ValueError(
                f"{shown(stated, key)} and {shown(stated, other)} state the "
                "same fact: remove the wrong one"
            )
        if value is None and not (self.may_be_null or self.supported):
            raise ValueError(f"the config holds no {key}: add it")
        if self.supported and value not in self.supported:
            supported = ", ".join(map(json.dumps, self.supported))
            raise ValueError(
                f"{shown({key: value}, key)}: the decoder supports {supported} "
                f"only{self.reason}"
            )
        return value


class Family(NamedTuple):
    """Decoders that transformers has a class for."""

    model_type: str  # `model_type` in transformers' config.json
    class_name: str  # class of transformers
    options: Options
    """`DecoderConfig` options that all models of the family share and that
    transformers does not store."""

    facts: Mapping[str, Fact]  # by our option
    fixed: tuple[Fact, ...] = ()  # facts of which some values are supported
    written: Mapping[str, Any] = {}  # their keys in an export
    names: Mapping[str, str] = {}  # part of our tensors' names -> of theirs

    def known_keys(self) -> set[str]:
        """Every key that is read, checked, or changes no logit."""
        stated = (*self.facts.values(), *self.fixed)
        keys = {key for fact in stated for key in fact.all_keys}
        of_ernie = {_LAST_LAYER} if self.written else set()
        return keys | NO_LOGIT | {*_OF_WINDOWS} | of_ernie

    def unknown_keys(self, options: Options) -> list[str]:
        """Keys with a value that nothing here knows."""
        known = self.known_keys()
        return [
            key
            for key, value in flattened(options).items()
            if not (key in known or key.startswith("_") or value is None)
        ]


def _rope(name: str) -> tuple[str, ...]:
    return tuple(f"{rope}.{name}" for rope in _ROPE_MAPS)


def _only(
    *values: Any, keys: tuple[str, ...], default: Any = None, reason: str = ""
) -> Fact:
    default = values[0] if default is None else default
    return Fact(keys, default, supported=values, reason=reason)


_FIXED = (
    _only("silu", "swish", keys=("hidden_act",)),
    _only("default", keys=(*_rope("rope_type"), *_rope("type"))),
    _only(1.0, keys=_rope("factor")),
    _only(1.0, keys=("partial_rotary_factor", *_rope("partial_rotary_factor"))),
    _only(0.0, keys=("attention_dropout",)),
    _only(None, *_FLOATS, keys=("torch_dtype", "dtype")),
    _only(None, keys=("quantization_config",)),
    _only(None, {}, keys=("per_layer_config",)),
    _only({}, keys=("pruned_heads",)),
    *(
        _only(False, keys=(key,))
        for key in (
            "attention_bias",
            "mlp_bias",
            "use_bias",
            "is_encoder_decoder",
            "add_cross_attention",
        )
    ),
)
_EVERY_LAYER = ": it has experts in every layer"
_KEY_HEADS = ("num_kv_heads", "n_kv_heads", "multi_query_group_num")
_EXPERTS = ("num_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_k", "moe_topk")


def _facts(
    *,
    rms_norm_eps: float,
    max_position_embeddings: int,
    rope_theta: float = 1e4,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    tie_word_embeddings: bool = False,
    **of_experts: Fact,
) -> dict[str, Fact]:
    """Facts of a family, with transformers' values of what may be missing.

    Sizes, and counts of layers, heads and experts, may not.
    """
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    return {
        **{name: Fact((name,)) for name in sizes},
        "num_key_value_heads": Fact(
            ("num_key_value_heads",),
            num_key_value_heads,
            may_be_null=True,
            also=_KEY_HEADS,
        ),
        "head_dim": Fact(("head_dim",), head_dim, may_be_null=True),
        "max_position_embeddings": Fact(
            ("max_position_embeddings",), max_position_embeddings
        ),
        "rope_theta": Fact(("rope_theta", *_rope("rope_theta")), rope_theta),
        "rms_norm_eps": Fact(("rms_norm_eps",), rms_norm_eps),
        "tie_word_embeddings": Fact(
            ("tie_word_embeddings",), tie_word_embeddings
        ),
        "initializer_range": Fact(("initializer_range",), 0.02),
        **of_experts,
    }


def _experts(*read: str) -> Fact:
    return Fact(read, also=tuple(k for k in _EXPERTS if k not in read))


def _per_token(*read: str) -> Fact:
    others = tuple(k for k in _EXPERTS_PER_TOKEN if k not in read)
    return Fact(read, also=others)


_BALANCE = Fact(("router_aux_loss_coef",), 0.001)
_ALL = (
    Family(  # with experts (Baidu 2025)
        model_type="ernie4_5_moe",
        class_name="Ernie4_5_MoeForCausalLM",
        options={
            "rope_layout": "interleaved",
            "qk_norm": False,
            "moe_correction_bias": True,
        },
        facts=_facts(
            rms_norm_eps=1e-5,
            max_position_embeddings=131072,
            rope_theta=5e5,
            num_key_value_heads=4,
            tie_word_embeddings=True,
            moe_num_experts=_experts("moe_num_experts", "num_experts"),
            moe_top_k=_per_token("moe_k", "num_experts_per_tok"),
            moe_intermediate_size=Fact(("moe_intermediate_size",)),
            moe_num_shared_experts=Fact(("moe_num_shared_experts",)),
            router_aux_loss_coef=_BALANCE,
        ),
        fixed=(
            *_FIXED,
            _only(
                0,
                keys=("moe_layer_start_index",),
                default=1,
                reason=_EVERY_LAYER,
            ),
            _only(1, keys=("moe_layer_interval",), reason=_EVERY_LAYER),
            _only(1e-12, keys=("moe_norm_min",)),
            # What Baidu's configs say, and transformers does not read
            _only(True, keys=("use_rmsnorm",)),
            _only(True, keys=("moe_use_aux_free",)),
            _only(False, keys=("is_quantized",)),
        ),
        written={
            "moe_layer_start_index": 0,
            "moe_layer_interval": 1,
            "moe_norm_min": 1e-12,
        },
        names={
            ".e_score_correction_bias": ".moe_statics.e_score_correction_bias"
        },
    ),
    Family(  # Jiang et al. 2024
        model_type="mixtral",
        class_name="MixtralForCausalLM",
        options={"rope_layout": "half", "qk_norm": False},
        facts=_facts(
            rms_norm_eps=1e-5,
            max_position_embeddings=131072,
            rope_theta=1e6,
            num_key_value_heads=8,
            moe_num_experts=_experts("num_local_experts", "num_experts"),
            moe_top_k=_per_token("num_experts_per_tok"),
            moe_intermediate_size=Fact(("intermediate_size",)),
            router_aux_loss_coef=_BALANCE,
        ),
        fixed=(*_FIXED, _only(0.0, keys=("router_jitter_noise",))),
        names={
            ".mlp.": ".block_sparse_moe.",
            ".gate_proj.": ".w1.",
            ".up_proj.": ".w3.",
            ".down_proj.": ".w2.",
        },
    ),
    Family(  # without experts (Yang et al. 2025)
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        options={"rope_layout": "half", "qk_norm": True},
        facts=_facts(
            rms_norm_eps=1e-6,
            max_position_embeddings=32768,
            num_key_value_heads=32,
            head_dim=128,
        ),
        fixed=_FIXED,
    ),
    Family(  # Touvron et al. 2023
        model_type="llama",
        class_name="LlamaForCausalLM",
        options={"rope_layout": "half"},
        facts=_facts(rms_norm_eps=1e-6, max_position_embeddings=2048),
        fixed=_FIXED,
    ),
)
FAMILIES = {family.model_type: family for family in _ALL}
"""Family by transformers' `model_type`."""

_LAST_LAYER = "moe_layer_end_index"
_OF_WINDOWS = (
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
)
NO_LOGIT = {
    # What the file is, and which program wrote it
    *("architectures", "model_type", "name_or_path", "transformers_version"),
    *("tokenizer_class", "prefix", "is_decoder", "tie_encoder_decoder"),
    *("cross_attention_hidden_size", "original_max_position_embeddings"),
    *(f"{rope}.original_max_position_embeddings" for rope in _ROPE_MAPS),
    # How the same numbers are computed, and what is returned
    *("use_cache", "pretraining_tp", "chunk_size_feed_forward", "torchscript"),
    *("return_dict", "output_hidden_states", "output_attentions"),
    *("output_router_logits", "tie_last_hidden_states", "use_bfloat16"),
    *("gradient_checkpointing", "attn_implementation", "tf_legacy_loss"),
    *("experts_implementation", "moe_gate", "moe_capacity"),
    # Other tasks
    *("finetuning_task", "task_specific_params", "problem_type"),
    *("id2label", "label2id", "num_labels"),
    # Text generation
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
    *("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams"),
    *("num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p"),
    *("typical_p", "repetition_penalty", "encoder_repetition_penalty"),
    *("length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores"),
    *("return_dict_in_generate", "remove_invalid_values", "suppress_tokens"),
    *("exponential_decay_length_penalty", "begin_suppress_tokens"),
    *("epsilon_cutoff", "eta_cutoff", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_lookbehind", "target_lookbehind"),
}
"""Keys that change no logit, and no loss without dropout."""


def shown(options: Options, key: str) -> str:
    """Return `key=value`, the value as it stands in the file."""
    return f"{key}={json.dumps(options[key], default=str):.200}"


def flattened(options: Options) -> dict[str, Any]:
    """Return the config with the maps of rotary positions as `map.key`."""
    result = dict(options)
    for name in _ROPE_MAPS:
        rope = result.pop(name, None)
        if rope is not None and not isinstance(rope, Mapping):
            raise ValueError(f"{shown(options, name)}: use a map, or null")
        for key, value in (rope or {}).items():
            if isinstance(value, Mapping):
                raise ValueError(
                    f"{name}.{key} is a map: the decoder supports one rotary "
                    f"embedding for all layers, write its keys into {name}"
                )
            result[f"{name}.{key}"] = value
    return result


def read_facts(options: Options, family: Family) -> dict[str, Any]:
    """Return our options' values, or refuse the config by a ValueError."""
    stated = flattened(options)
    for fact in family.fixed:
        fact.value(stated)
    values = {name: fact.value(stated) for name, fact in family.facts.items()}
    num_layers = values["num_hidden_layers"]
    for name, fact in family.facts.items():
        is_count = name == "num_hidden_layers" or "experts" in name
        limit: float = MAX_COUNT if is_count else MAX_SIZE
        limit, value = _LIMITS.get(name, limit), values[name]
        if isinstance(value, (int, float)) and not 0 <= value <= limit:
            key = fact.keys[0]
            raise ValueError(f"{key}={value}: not in [0, {limit}]")
    _check_windows(options, family, num_layers)
    last = options.get(_LAST_LAYER)
    if family.written and last not in (-1, None, num_layers - 1):
        raise ValueError(
            f"{shown(options, _LAST_LAYER)}: the decoder has experts in every "
            f"layer, write -1 or {num_layers - 1} if the model does"
        )
    return values


def _check_windows(options: Options, family: Family, num_layers: int) -> None:
    """Refuse attention to a window of tokens: the decoder attends to all.

    Qwen3 has a window where `use_sliding_window` is true, Mixtral where
    `sliding_window` is given; the other classes have none.
    """
    window, switch = (options.get(key) for key in _OF_WINDOWS[:2])
    if family.model_type == "qwen3":
        is_on, key, off = switch not in (None, False), _OF_WINDOWS[1], "false"
    else:
        is_mixtral = family.model_type == "mixtral"
        is_on = window is not None and (is_mixtral or switch is not False)
        key, off = _OF_WINDOWS[0], "null"
    if is_on:
        ignored = f" ({family.class_name} reads this key alone)"
        raise ValueError(
            f"{shown(options, key)}{ignored * (switch is False)}: the decoder "
            f"attends to all tokens, write {off} if the model does"
        )
    types = options.get("layer_types")
    if types is not None and types != ["full_attention"] * num_layers:
        raise ValueError(
            f"{shown(options, 'layer_types')}: the decoder supports "
            f'"full_attention", for each of {num_layers} layers'
        )
