# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loss over the learning rate on a GPU: PyTorch, the rule of AdaGC.

    python examples/torch_rates.py TEXT --output cells.jsonl --minutes 9
    python examples/torch_rates.py TEXT --output cells.jsonl --size 1m

TEXT is any file; its bytes are the tokens. A plain decoder (RMSNorm, SwiGLU,
rotary positions, no QK-norm, bfloat16, compiled on a GPU) trains once in each
cell of a grid: three rates, beta2 0.95 and 0.999, GlobalGC 1, AdaGC, and AdaGC
with warmup_ema. A line of JSON follows each cell; cells that OUTPUT has are
not run again, and none but the first begins that would not end within MINUTES.

It needs PyTorch, NumPy and torch_adagc.py beside it. It is another framework
than Paddle, and the same rule; q, k and v share a norm here, and so do gate
and up.
"""

import argparse
import itertools
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_adagc import AdaGC

# What may differ most comes first: not every cell may fit.
BETA2S, RATES = (0.999, 0.95), (0.008, 0.004, 0.002)
CLIPS = ("GlobalGC 1", "AdaGC", "warmup_ema")
SIZES = {  # width, layers, heads, inner width, sequence, sequences a step
    "124m": (768, 12, 12, 2048, 1024, 64),
    "1m": (128, 4, 4, 352, 128, 8),
}
WARM_UP = 50
"""Steps in which the learning rate rises; it is constant afterwards."""


class Block(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(
            2, 0, 3, 1, 4
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of values by their position."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class Decoder(nn.Module):
    """Next-byte prediction."""

    def __init__(
        self, width: int, layers: int, heads: int, inner: int, length: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, inner) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        half = width // heads // 2
        turns = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(length)[:, None] * turns
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_last = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / (2 * layers) ** 0.5 if is_last else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, nats per byte."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(
    text: np.ndarray, cell: dict[str, Any], size: str, steps: int, device: str
) -> list[float]:
    """Train in one cell; returns the loss of each step."""
    torch.manual_seed(cell["seed"])
    width, layers, heads, inner, length, sequences = SIZES[size]
    model = Decoder(width, layers, heads, inner, length).to(device)
    is_gpu = device == "cuda"
    forward = torch.compile(model) if is_gpu else model
    precision = (
        torch.autocast("cuda", torch.bfloat16) if is_gpu else nullcontext()
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        betas=(0.9, cell["beta2"]),
        eps=1e-15,
        weight_decay=0.1,
        fused=is_gpu,
    )
    init = "warmup_ema" if cell["clip"] == "warmup_ema" else "warmup_min"
    clip = AdaGC(model.named_parameters(), init=init)
    order, losses = np.random.default_rng(cell["seed"]), []
    for step in range(steps):
        begins = order.integers(0, len(text) - length, sequences)
        rows = text[begins[:, None] + np.arange(length + 1)].astype(np.int64)
        batch = torch.from_numpy(rows).to(device)
        with precision:
            loss = forward(batch[:, :-1], batch[:, 1:])
        loss.backward()
        if cell["clip"] == "GlobalGC 1":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            clip.step()
        for group in optimizer.param_groups:
            group["lr"] = cell["rate"] * min((step + 1) / WARM_UP, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main() -> None:
    """Run the cells that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="124m")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--cells", type=int, help="run so many at most")
    options = parser.parse_args()
    begin, longest = time.monotonic(), 0.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = np.fromfile(options.text, np.uint8)
    made = set()
    if options.output.exists():
        lines = options.output.read_text().splitlines()
        made = {key_of(json.loads(line)) for line in lines}
    grid = itertools.product(range(options.seeds), BETA2S, RATES, CLIPS)
    about = {"size": options.size, "steps": options.steps}
    num_run = 0
    for seed, beta2, rate, clip in grid:
        cell = {
            "seed": seed,
            "beta2": beta2,
            "rate": rate,
            "clip": clip,
            **about,
        }
        left = 60 * options.minutes - (time.monotonic() - begin)
        if key_of(cell) in made:
            continue
        if left < longest or num_run == options.cells:
            break
        start = time.monotonic()
        losses = train(text, cell, options.size, options.steps, device)
        seconds = time.monotonic() - start
        longest, num_run = max(longest, seconds), num_run + 1
        gpu = torch.cuda.get_device_name() if device == "cuda" else ""
        cell |= {"device": gpu or "cpu", "torch": torch.__version__}
        cell |= {"seconds": round(seconds, 1)}
        # As text where it is not finite: JSON has no NaN.
        cell["losses"] = [
            float(f"{x:.4g}") if abs(x) < 1e9 else str(x) for x in losses
        ]
        with options.output.open("a") as file:
            file.write(json.dumps(cell, allow_nan=False) + "\n")
        tail = np.mean(losses[-max(options.steps // 5, 1) :])
        print(
            f"{clip}, beta2 {beta2}, rate {rate}: {tail:.4f}, {seconds:.0f} s"
        )


def key_of(cell: dict[str, Any]) -> tuple[Any, ...]:
    """Return what makes a cell."""
    names = ("seed", "beta2", "rate", "clip", "size", "steps")
    return tuple(cell[name] for name in names)


if __name__ == "__main__":
    main()
