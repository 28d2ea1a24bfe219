# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our decoder as a language model of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from paddle_adagc.lab.evaluate.scoring import Scorer
from paddle_adagc.lab.evaluate.tokenizer import TextTokenizer

_MAX_NEW_TOKENS = 256  # the harness' default


class DecoderLM(TemplateLM):
    """The harness' interface to a :class:`Scorer`.

    Tokens, truncation and the treatment of empty contexts are those of the
    harness' own Hugging Face models, so that scores can be compared.

    Args:
        scorer: Runs the decoder.
        tokenizer: The decoder's tokenizer.
        shows_bar: Show progress bars.
    """

    def __init__(
        self,
        scorer: Scorer,
        tokenizer: TextTokenizer,
        *,
        shows_bar: bool = False,
    ) -> None:
        super().__init__()
        self.scorer = scorer
        self.text = tokenizer
        self.shows_bar = shows_bar

    @property
    def eot_token_id(self) -> int:
        """Token that ends a document."""
        return self.text.eos_id

    @property
    def prefix_token_id(self) -> int:
        """Token to begin with where there is no context."""
        return self.text.prefix_id

    @property
    def tokenizer_name(self) -> str:
        """For the harness' caches."""
        return self.text.name

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Tokens of a text (the harness' interface)."""
        return self.text.encode(string, add_special_tokens)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Score (context, continuation) requests."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        pairs = [(context, rest) for _, context, rest in requests]
        scores = self.scorer.score(pairs, shows_bar=self.shows_bar)
        for (strings, _, _), score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", strings, tuple(score))
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihoods of whole texts, in windows of the model's length."""
        pairs: list[tuple[list[int], list[int]]] = []
        ends = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.scorer.max_length,
                context_len=1,
            )
            pairs += map(make_disjoint_window, windows)
            ends.append(len(pairs))
        scores = self.scorer.score(pairs, shows_bar=self.shows_bar)
        totals = []
        for request, start, end in zip(
            requests, [0, *ends], ends, strict=False
        ):
            total = sum(s.log_likelihood for s in scores[start:end])
            totals.append(total)
            self.cache_hook.add_partial(
                "loglikelihood_rolling", request.args, total
            )
        return totals

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Continue texts greedily up to a stop string.

        Raises:
            ValueError: A task that samples.
        """
        texts: list[str] = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(index)
        for indices in groups.values():
            options = normalize_gen_kwargs(
                requests[indices[0]].args[1], _MAX_NEW_TOKENS
            )
            if options["do_sample"]:
                raise ValueError(
                    f"{requests[indices[0]].task_name} samples "
                    f"({requests[indices[0]].args[1]}): only greedy decoding "
                    "is supported"
                )
            contexts = [requests[index].args[0] for index in indices]
            found = self._continue(
                contexts, options["until"], options["max_gen_toks"]
            )
            for index, text in zip(indices, found, strict=True):
                texts[index] = text
                self.cache_hook.add_partial(
                    "generate_until", requests[index].args, text
                )
        return texts

    def _continue(
        self, contexts: Sequence[str], until: list[str], max_new_tokens: int
    ) -> list[str]:
        end = self.text.decode([self.eot_token_id], special=True)
        stops = handle_stop_sequences(until, eos=end)

        def is_complete(tokens: list[int]) -> bool:
            if tokens[-1] == self.eot_token_id:
                return True
            text = self.text.decode(tokens, special=True)
            return any(stop and stop in text for stop in stops)

        encoded = [self.tok_encode(context) for context in contexts]
        found = self.scorer.continue_greedily(
            [tokens or [self.prefix_token_id] for tokens in encoded],
            max_new_tokens,
            is_complete,
        )
        return [
            postprocess_generated_text(self.text.decode(tokens), stops, None)
            for tokens in found
        ]
