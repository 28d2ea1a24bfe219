# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mean and standard deviation of a moving window, without rounding."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from paddle_adagc.stability.spike_rule import SpikeRule


class ExactWindow:
    """The last ``rule.window`` finite values, their sum and sum of squares.

    A float64 is an integer over a power of two. Over one common power of two
    both sums are integers, which Python keeps exact: the subtraction
    ``window * sum_of_squares - sum**2`` loses no digits, a window of equal
    values has a deviation of exactly 0, and the sums depend on the values in
    the window alone, not on how they came there. A step costs O(1) operations
    on integers of a few machine words.

    Args:
        rule: Window length, sigma, direction and deviation.
        values: First content, finite, oldest first.
    """

    def __init__(self, rule: SpikeRule, values: Iterable[float] = ()) -> None:
        self._size = rule.window
        self._divisor = rule.window - (rule.deviation == "sample")
        self._up = rule.direction != "down"
        self._down = rule.direction != "up"
        numerator, denominator = rule.sigma.as_integer_ratio()
        self._distance_factor = denominator**2 * self._divisor
        self._spread_factor = numerator**2 * self._size
        self._bits = 0
        self._integers: deque[int] = deque()
        self._sum = 0
        self._sum_of_squares = 0
        for value in values:
            self.push(value)

    def __len__(self) -> int:
        """Return the number of values in the window."""
        return len(self._integers)

    @property
    def full(self) -> bool:
        """Whether the window holds enough values to judge the next one."""
        return len(self._integers) == self._size

    @property
    def values(self) -> list[float]:
        """Content, oldest first."""
        unit = 1 << self._bits
        return [integer / unit for integer in self._integers]

    def push(self, value: float) -> None:
        """Let a finite value in, and the oldest one out of a full window."""
        new = self._to_integer(value)
        if len(self._integers) == self._size:
            old = self._integers.popleft()
            self._sum -= old
            self._sum_of_squares -= old * old
        self._integers.append(new)
        self._sum += new
        self._sum_of_squares += new * new

    def is_spike(self, value: float) -> bool:
        """Whether a finite value deviates by sigma or more; no if not full."""
        if len(self._integers) < self._size:
            return False
        distance = self._size * self._to_integer(value) - self._sum
        if not (self._up if distance > 0 else self._down and distance < 0):
            return False
        # (x - mean)^2 >= sigma^2 * variance, times everything that divides.
        return (
            self._distance_factor * distance * distance
            >= self._spread_factor * self._spread()
        )

    def mean(self) -> float:
        """Mean of a full window, NaN before."""
        if not self.full:
            return math.nan
        return self._sum / (self._size << self._bits)

    def standard_deviation(self) -> float:
        """Return the standard deviation of a full window, NaN before."""
        if not self.full:
            return math.nan
        extra = 64
        variance = (self._spread() << 2 * extra) // (self._size * self._divisor)
        try:
            return math.isqrt(variance) / (1 << self._bits + extra)
        except OverflowError:
            return math.inf

    def _spread(self) -> int:
        return self._size * self._sum_of_squares - self._sum * self._sum

    def _to_integer(self, value: float) -> int:
        """``value * 2**bits``; more bits first if it needs them."""
        numerator, denominator = value.as_integer_ratio()
        bits = denominator.bit_length() - 1
        if bits > self._bits:
            shift = bits - self._bits
            self._integers = deque(x << shift for x in self._integers)
            self._sum <<= shift
            self._sum_of_squares <<= 2 * shift
            self._bits = bits
        return numerator << (self._bits - bits)
