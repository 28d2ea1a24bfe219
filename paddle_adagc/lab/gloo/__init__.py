# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet on CPU over gloo: a backend for development and tests.

Paddle's CPU build runs ``paddle.distributed`` over gloo, but fleet's tensor,
pipeline, sequence, sharding and expert parallelism call operators that have
no CPU kernel and process-group methods that gloo lacks. ``enable`` fills in
what is missing; importing this package changes nothing. It is correct, not
fast, and works on one machine: never train a real model on it.
"""

from paddle_adagc.lab.gloo.backend import enable

__all__ = ["enable"]
