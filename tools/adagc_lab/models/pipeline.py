# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder as fleet's pipeline, saved under the names of the whole model."""

import functools

from paddle import Tensor, nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import (
    LayerDesc,
    PipelineLayer,
    SharedLayerDesc,
)

from adagc_lab.models.config import (
    DecoderConfig,
    PipelinePretrainedModel,
)
from adagc_lab.models.decoder import (
    DecoderLayer,
    Flow,
    add_router_loss,
    cross_entropy,
    embed,
)
from adagc_lab.models.layers import (
    RMSNorm,
    linear,
    tied_head,
    token_embedding,
)
from adagc_lab.models.parallel import check_parallel, whole_sequence


def stage_bounds(num_layers: int, num_stages: int) -> list[int]:
    """Return where each stage begins in [embedding, layers, norm, head].

    These `num_stages + 1` indices are fleet's `seg_method`. Stages differ by
    one decoder layer at most. The spare ones go to the middle, then to the
    first stage, because the head is the largest extra.
    """
    if num_stages > num_layers:
        raise ValueError(
            f"pp_degree={num_stages} with num_hidden_layers={num_layers}: "
            "every stage needs a decoder layer, use fewer stages."
        )
    share, spare = divmod(num_layers, num_stages)
    takers = [*range(1, num_stages - 1), 0][:spare]
    bounds = [0]
    for stage in range(num_stages):
        bounds.append(bounds[-1] + share + (stage in takers))
    return [0, *(bound + 1 for bound in bounds[1:-1]), num_layers + 3]


class EmbeddingPipe(nn.Layer):
    """Token embedding; with a tied head the same tensor on both stages."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = token_embedding(config)

    @property
    def embedding_weight(self) -> Tensor:
        """Return the tensor that a tied head shares, [vocab, hidden]."""
        return self.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> Flow:
        return embed(self.config, self.embed_tokens, input_ids)


class NormPipe(RMSNorm):
    """Final norm; after it sequences are whole again."""

    def forward(self, flow: Flow) -> Flow:
        x = super().forward(flow[0])
        return whole_sequence(x) if self.is_shared else x, flow[1]


class HeadPipe(nn.Layer):
    """An untied head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.lm_head = linear(
            config, config.hidden_size, config.vocab_size, "columns"
        )

    def forward(self, flow: Flow) -> Flow:
        return self.lm_head(flow[0]), flow[1]


def tied_head_pipe(embedding: EmbeddingPipe, flow: Flow) -> Flow:
    return tied_head(flow[0], embedding.embedding_weight), flow[1]


class PipelineLoss(nn.Layer):
    """Loss at the end of the pipeline, with the router loss in training.

    On the last stage `micro_losses` keeps each micro-batch's cross-entropy in
    training, until it is taken out.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.micro_losses: list[Tensor] = []

    def forward(self, flow: Flow, labels: Tensor) -> Tensor:
        """Loss of one micro-batch, a float32 scalar."""
        loss = cross_entropy(flow[0], labels)
        if not self.training:
            return loss
        self.micro_losses.append(loss.detach())
        return add_router_loss(self.config, loss, flow[1])


class DecoderForCausalLMPipe(PipelinePretrainedModel, PipelineLayer):
    """`DecoderForCausalLM` over the stages of fleet's pipeline.

    `state_dict` has the keys of the model in one piece, of this stage's
    tensors. With PaddleNLP's `config.virtual_pp_degree` each stage has as many
    parts, all of equally many layers, and the schedule is interleaved; then the
    head must be tied, because PaddleNLP gives another one a wrong name.
    """

    config_class = DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        check_parallel(config)
        topology = fleet.get_hybrid_communicate_group()
        num_stages = topology.get_pipe_parallel_world_size()
        num_parts = getattr(config, "virtual_pp_degree", 1)
        self.config = config
        self._describe(config)
        bounds: list[int] | str = f"layer:{DecoderLayer.__name__}"
        if num_parts == 1:
            bounds = stage_bounds(config.num_hidden_layers, num_stages)
        loss = PipelineLoss(config)
        PipelineLayer.__init__(
            self,
            layers=self.get_sequential_layers(),
            loss_fn=loss,
            topology=topology.topology(),
            seg_method=bounds,
            num_virtual_pipeline_stages=num_parts,
        )
        self.loss = loss

    def _describe(self, config: DecoderConfig) -> None:
        embedding = LayerDesc(EmbeddingPipe, config)
        head, head_name = LayerDesc(HeadPipe, config), ""
        if config.tie_word_embeddings:
            share = functools.partial(
                SharedLayerDesc,
                key="embed_tokens",
                layer_func=EmbeddingPipe,
                shared_weight_attr="embedding_weight",
                config=config,
            )
            embedding, head = share(), share(forward_func=tied_head_pipe)
            head_name = "model"
        self.add_sequential_layer(embedding, "model")
        for index in range(config.num_hidden_layers):
            layer = LayerDesc(DecoderLayer, config)
            self.add_sequential_layer(layer, f"model.layers.{index}")
        self.add_sequential_layer(LayerDesc(NormPipe, config), "model.norm")
        self.add_sequential_layer(head, head_name)

    def take_losses(self) -> list[Tensor]:
        losses, self.loss.micro_losses = self.loss.micro_losses, []
        return losses
