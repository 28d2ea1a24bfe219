#!/usr/bin/env bash
# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
# Install this package for its tests and for scripts/train.py, into the
# active environment. Paddle comes with PaddleFleet, which names its nightly build and
# where uv finds it. On a machine without a GPU:
#   PADDLE=paddlepaddle==3.3.1 bash scripts/build_env.sh
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${PADDLE:-}" ]; then
    python -m pip install "${PADDLE}"
else
    uv pip install -e ../..
fi
python -m pip install -e ".[run,test]"
python -c "from paddle_adagc import ClipGradByAdaGC; print(ClipGradByAdaGC())"
