# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of a running training: several series, judged by their own past."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from paddle_adagc.checks import (
    check_bool,
    check_integer,
    check_not_negative,
    check_positive,
    check_real,
    suggestion,
)
from paddle_adagc.stability.monitor import check_state
from paddle_adagc.stability.spike_score import EVENT_GAP, robust_center

_SMALLEST = 1e-30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
    """When a value of a series is abnormal.

    A finite value is abnormal if it is more than ``sigma`` deviations, and more
    than ``least``, above the median of the ``window`` finite values before it.
    The deviation is their median absolute deviation (MAD) times 1.4826; where
    that is 0, the mean absolute deviation times sqrt(pi / 2). The first
    ``first`` values are not judged. NaN and Inf always are abnormal, and do not
    enter the window.
    """

    sigma: float = 8.0
    """Least distance from the median, in deviations, > 0."""

    least: float = 0.0
    """Least distance in the series' own unit, or of the logarithms, >= 0."""

    log: bool = False
    """Compare logarithms, for series whose ratios matter; 0 counts as 1e-30."""

    limit: float | None = None
    """If given, the values above it are abnormal, from the first one on, and
    none of the other settings applies."""

    smoothing: int = 1
    """Judge the mean of this many last finite values (of the logarithms), for
    series where a single value says little."""

    window: int = 128
    """Number of preceding finite values to compare with."""

    first: int = 64
    """Number of finite values before the first judged one, at least 2."""

    def __post_init__(self) -> None:
        """Validate every field; the error names the first that is wrong."""
        check_positive("sigma", self.sigma)
        check_not_negative("least", self.least)
        check_bool("log", self.log)
        if self.limit is not None:
            check_real("limit", self.limit)
        check_integer("smoothing", self.smoothing, 1)
        check_integer("first", self.first, 2)
        check_integer("window", self.window, self.first)


WATCHES: Mapping[str, Watch] = MappingProxyType(
    {
        "loss": Watch(least=0.1),
        "global_grad_norm": Watch(log=True, least=math.log(8), sigma=4.0),
        "clipped_fraction": Watch(least=0.5, smoothing=16),
        "gamma_change": Watch(least=math.log(2)),
        "nonfinite": Watch(limit=0.0),
        "stuck": Watch(limit=0.0),
        "step_seconds": Watch(log=True, least=math.log(4), smoothing=16),
    }
)
"""Series that :class:`Monitor` watches by default: the loss in nat; the global
gradient norm before the clip, with a lower ``sigma`` since its descent widens
the deviation; the share of tensors clipped; the largest
``abs(log(gamma / previous gamma))`` of all tensors; the number of tensors with
Inf or NaN; the number of tensors that were clipped below h 0.01 for 200 steps,
once each; the seconds of the step."""


@dataclasses.dataclass(frozen=True)
class Alarm:
    """An event of one series: abnormal values close to each other."""

    series: str
    start: int
    """Step of the first abnormal value."""

    end: int
    """Step of the last abnormal value so far."""

    worst: float
    """Abnormal value with the highest score; NaN and Inf before all. Of a
    smoothed series it is the mean."""

    worst_step: int

    usual: float
    """Median before the first abnormal value; NaN if there were too few."""

    score: float
    """Distance of ``worst`` from its median, in deviations; Inf for NaN and
    Inf, above a limit, and after a constant window."""

    def __str__(self) -> str:
        """One line for a log."""
        steps = f"step {self.start}"
        if self.end > self.start:
            steps = f"steps {self.start} to {self.end}, worst {self.worst_step}"
        return (
            f"{self.series} {self.worst:.4g} (usual {self.usual:.4g}, "
            f"{self.score:.3g} deviations) at {steps}"
        )


class Monitor:
    """Watch several series of a run and report every event once.

    An abnormal value at most 10 steps after the one before belongs to the same
    event. The values are numbers on the host: pass those of the steps since the
    last log when they are logged anyway, and no step waits for the device. How
    steps are split into calls changes nothing but the end of an event that is
    still open.

    Args:
        watches: Rule by name of the series; default :data:`WATCHES`.

    Raises:
        ValueError: No series.

    Example:
        >>> monitor = Monitor()
        >>> rows = [(step, {"loss": 2 + step % 7 / 70}) for step in range(100)]
        >>> monitor.update(rows)
        []
        >>> [alarm] = monitor.update([(100, {"loss": 5.0})])
        >>> alarm.series, alarm.start, alarm.worst
        ('loss', 100, 5.0)
    """

    def __init__(self, watches: Mapping[str, Watch] = WATCHES) -> None:
        if not watches:
            raise ValueError("watches is empty: name at least one series")
        self.watches = dict(watches)
        self._past, self._recent = (
            {
                name: deque[float](maxlen=getattr(watch, length))
                for name, watch in self.watches.items()
            }
            for length in ("window", "smoothing")
        )
        self._alarms: list[Alarm] = []
        self._latest: dict[str, int] = {}

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All events so far, in the order of their starts."""
        return tuple(self._alarms)

    def update(
        self, rows: Iterable[tuple[int, Mapping[str, float]]]
    ) -> list[Alarm]:
        """Take the next steps.

        Args:
            rows: Step, ascending, and the values of its series. A step need not
                have all series.

        Returns:
            The events that began in these steps, as they are after the last.

        Raises:
            TypeError: A value that cannot be made a ``float``.
            ValueError: A series without a rule.
        """
        known = len(self._alarms)
        for step, values in rows:
            for name, value in values.items():
                if name not in self.watches:
                    near = suggestion(name, self.watches)
                    raise ValueError(f"no rule for the series {name!r}{near}")
                self._take(name, step, float(value))
        return self._alarms[known:]

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON-serialisable values."""
        return {
            "config": {
                name: dataclasses.asdict(watch)
                for name, watch in self.watches.items()
            },
            "past": {name: list(past) for name, past in self._past.items()},
            "recent": {name: list(x) for name, x in self._recent.items()},
            "alarms": [dataclasses.asdict(alarm) for alarm in self._alarms],
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from another monitor's :meth:`state_dict`.

        Raises:
            TypeError: A value of a wrong type.
            ValueError: A missing key, or a state of other settings. The monitor
                is then unchanged.
        """
        check_state(state, self.state_dict())
        past = _deques(self._past, state["past"])
        recent = _deques(self._recent, state["recent"])
        alarms = [_alarm(alarm) for alarm in state["alarms"]]
        self._past, self._recent, self._alarms = past, recent, alarms
        self._latest = {a.series: i for i, a in enumerate(alarms)}

    def _take(self, name: str, step: int, value: float) -> None:
        watch, past = self.watches[name], self._past[name]
        level = value
        if is_finite := math.isfinite(value):
            recent = self._recent[name]
            recent.append(
                math.log(max(value, _SMALLEST)) if watch.log else value
            )
            if len(recent) < watch.smoothing:
                return
            level = sum(recent) / watch.smoothing
            value = math.exp(level) if watch.log else level
        usual, score = _judge(watch, past, level)
        if is_finite:
            past.append(level)
        else:
            score = math.inf
        if score > 0:
            self._report(Alarm(name, step, step, value, step, usual, score))

    def _report(self, new: Alarm) -> None:
        """Add an abnormal value to its series' last event, or begin one."""
        place = self._latest.get(new.series)
        if place is None or new.start - self._alarms[place].end > EVENT_GAP:
            self._latest[new.series] = len(self._alarms)
            self._alarms.append(new)
            return
        old = self._alarms[place]
        worst = new if _badness(new) > _badness(old) else old
        self._alarms[place] = dataclasses.replace(
            worst, start=old.start, end=new.end, usual=old.usual
        )


def _deques(
    mine: Mapping[str, deque[float]], state: Mapping[str, Any]
) -> dict[str, deque[float]]:
    """Return a state's values in deques as long as ``mine``."""
    if missing := sorted(mine.keys() - state.keys()):
        raise ValueError(f"the state lacks values of {', '.join(missing)}")
    return {
        name: deque([check_real(name, x) for x in state[name]], old.maxlen)
        for name, old in mine.items()
    }


def _alarm(values: Mapping[str, Any]) -> Alarm:
    try:
        return Alarm(**values)
    except TypeError as error:
        raise ValueError(
            f"the state's alarm {values} is damaged: {error}"
        ) from None


def _badness(alarm: Alarm) -> tuple[bool, float, float]:
    finite = math.isfinite(alarm.worst)
    return (not finite, alarm.score, abs(alarm.worst) if finite else 0.0)


def _judge(
    watch: Watch, past: deque[float], level: float
) -> tuple[float, float]:
    """Return the usual value before a level, and its score; 0: normal."""
    if watch.limit is not None:
        return watch.limit, math.inf if level > watch.limit else 0.0
    if len(past) < watch.first:
        return math.nan, 0.0
    median, deviation = map(float, robust_center(np.array(past)))
    usual = math.exp(median) if watch.log else median
    distance = level - median
    if distance <= watch.least:
        return usual, 0.0
    score = distance / deviation if deviation else math.inf
    return usual, score if score > watch.sigma else 0.0
