# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed, cut off from power, damaged: do they resume?"""
