# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of a running training: several series, judged by their own past."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sized
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.checks import (
    as_float,
    check_bool,
    check_integer,
    check_not_negative,
    check_positive,
    check_real,
    suggestion,
)
from paddle_adagc.spikes import EVENT_GAP
from paddle_adagc.stability.masking import Masking

_WINDOW = 128
FIRST_JUDGED = 64
"""Values before the first that is judged."""

_SMALLEST = 1e-30
NORMAL_CONSISTENCY = 1.482602218505602
"""Standard deviation of a normal distribution over its MAD."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
    """When a value of a series is abnormal.

    A finite value is abnormal if it is more than ``sigma`` deviations, and more
    than ``least``, above the median of the 128 finite values before it. The
    deviation is their median absolute deviation (MAD) times 1.4826; where that
    is 0, the mean absolute deviation times sqrt(pi / 2). The first 64 values
    are not judged. NaN and Inf always are abnormal, and do not enter the
    window.

    Raises:
        TypeError, ValueError: A field has a wrong type or is out of its range,
            or two of ``limit``, ``floor`` and ``log`` are given.

    Example:
        >>> from paddle_adagc.stability import Monitor, Watch
        >>> monitor = Monitor({"nonfinite": Watch(limit=0.0)})
        >>> [alarm] = monitor.update([(7, {"nonfinite": 2})])
        >>> alarm.series, alarm.start
        ('nonfinite', 7)
    """

    sigma: float = 8.0
    """Least distance from the median, in deviations, > 0."""

    least: float = 0.0
    """Least distance in the series' own unit, or of the logarithms, >= 0."""

    log: bool = False
    """Compare logarithms, for series whose ratios matter; 0 counts as 1e-30."""

    limit: float | None = None
    """If given, the values above it are abnormal, from the first one on, and
    of the other settings ``smoothing`` and ``lasting`` alone apply."""

    floor: float | None = None
    """Like ``limit``, for values below it."""

    smoothing: int = 1
    """Judge the mean of this many last finite values (of the logarithms)."""

    lasting: int = 1
    """Values count once all of the last so many steps were abnormal."""

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_not_negative("least", self.least)
        check_bool("log", self.log)
        bounds = {"limit": self.limit, "floor": self.floor}
        given = [name for name, value in bounds.items() if value is not None]
        for name in given:
            check_real(name, bounds[name])
        check_integer("smoothing", self.smoothing, 1)
        check_integer("lasting", self.lasting, 1)
        given += ["log"] * self.log
        if len(given) > 1:
            raise ValueError(
                f"a Watch with {' and '.join(given)}: a limit or a floor is "
                "compared with the value itself, and a series has one of them"
            )


WATCHES: Mapping[str, Watch] = MappingProxyType(
    {
        "loss": Watch(least=0.1),
        "global_grad_norm": Watch(log=True, least=math.log(8), sigma=4.0),
        "nonfinite": Watch(limit=0.0),
        "tensor_norm": Watch(limit=2.0),
        "h_median": Watch(floor=0.5, lasting=200),
        "masked": Watch(limit=3.0),
        "small_second_moment": Watch(limit=0.5),
        "stuck": Watch(limit=0.0),
        "step_seconds": Watch(log=True, least=math.log(4), smoothing=16),
    }
)
"""Series that :class:`Monitor` watches by default:

- ``loss``, in nat;
- ``global_grad_norm``, before the clip; with a lower ``sigma``, since its
  descent widens the deviation;
- ``nonfinite``: number of tensors with Inf or NaN;
- ``tensor_norm``: largest norm of a tensor over its own usual norm;
- ``h_median``: below 0.5 for 200 steps the clip takes more than half of most
  gradients, calm steps included;
- ``masked``: how far the norm has risen while h fell (:class:`.Masking`);
- ``small_second_moment``: share of the elements with the square root of Adam's
  second moment below 10 epsilon;
- ``stuck``: number of tensors newly below h 0.01 for 200 steps;
- ``step_seconds``: seconds of the step."""

_UNJUDGED = frozenset(
    {
        *("step", "tensors", "lowest_h", "num_tensors", "nonfinite_total"),
        *("clipped_grad_norm", "clipped_fraction", "clipped_norm_fraction"),
        *("h_min", "h_p10", "warm_up"),
    }
)
"""What ``summary()`` has besides; ``warm_up`` is of a record."""


@dataclasses.dataclass(frozen=True)
class Alarm:
    """An event of one series: abnormal values close to each other."""

    series: str
    """Name of the series."""

    start: int
    """Step of the first abnormal value."""

    end: int
    """Step of the last abnormal value so far."""

    worst: float
    """Abnormal value with the highest score; NaN and Inf before all. Of a
    smoothed series it is the mean."""

    worst_step: int
    """Step of ``worst``."""

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
        rule = WATCHES.get(self.series, Watch())
        has_bound = rule.limit is not None or rule.floor is not None
        said = f"{'limit' if has_bound else 'usual'} {self.usual:.4g}"
        if math.isfinite(self.score):
            said += f", {self.score:.3g} deviations"
        return f"{self.series} {self.worst:.4g} ({said}) at {steps}"


class Monitor:
    """Watch several series of a run and report every event once.

    An abnormal value at most 10 steps after the one before belongs to the same
    event. The values are numbers on the host: pass those of the steps since the
    last log when they are logged anyway, and no step waits for the device. How
    steps are split into calls changes nothing but the end of an event that is
    still open.

    Args:
        watches: Rule by name of the series; default :data:`WATCHES`.

    Example:
        >>> from paddle_adagc.stability import Monitor
        >>> monitor = Monitor()
        >>> rows = [(step, {"loss": 2 + step % 7 / 70}) for step in range(100)]
        >>> monitor.update(rows)
        []
        >>> [alarm] = monitor.update([(100, {"loss": 5.0})])
        >>> alarm.series, alarm.start, alarm.worst
        ('loss', 100, 5.0)
    """

    def __init__(self, watches: Mapping[str, Watch] = WATCHES) -> None:
        self.watches = dict(watches)
        self._set_levels({})
        self._since: dict[str, int] = {}
        """Series -> first step of its abnormal values, up to the last one."""
        self._stuck: set[str] = set()
        self._nonfinite_total: int | None = None
        self._masking = Masking()
        self._alarms: list[Alarm] = []

    def _set_levels(self, levels: Mapping[str, Iterable[float]]) -> None:
        """Finite values of every series: judged means need ``_WINDOW + 1``."""
        self._levels = {
            name: deque(levels.get(name, ()), _WINDOW + watch.smoothing)
            for name, watch in self.watches.items()
        }

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All events so far, in the order of their starts."""
        return tuple(self._alarms)

    @property
    def rise(self) -> float:
        """How far the norm has risen while h fell, over 128 steps or more."""
        return self._masking.rise(2)

    def update(
        self, rows: Iterable[tuple[int, Mapping[str, Any]]]
    ) -> list[Alarm]:
        """Take the next steps.

        Args:
            rows: Step, ascending, and the values of its series, or all that a
                clip's ``summary()`` gives. A step need not have all series.
                Of ``stuck`` names are counted, once each; of
                ``nonfinite_total`` what is new since the row before counts as
                ``nonfinite``. With ``warm_up`` true h is not judged: there
                AdaGC clips by the global norm.

        Returns:
            The events that began in these steps, as they are after the last.

        Raises:
            TypeError: A value that cannot be made a ``float``.
            ValueError: A series without a rule.
        """
        known = len(self._alarms)
        for step, given in rows:
            for name, value in self._series(given).items():
                if name in self.watches:
                    self._take(name, step, as_float(value))
                elif name not in WATCHES and name not in _UNJUDGED:
                    near = suggestion(name, self.watches)
                    raise ValueError(f"no rule for the series {name!r}{near}")
        return self._alarms[known:]

    def _series(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers to judge, those that follow from others included."""
        values = dict(given)
        if isinstance(names := values.get("stuck"), Sized):
            new = {*names} - self._stuck  # type: ignore[misc]
            self._stuck |= new
            values["stuck"] = len(new)
        if (total := values.get("nonfinite_total")) is not None:
            before, self._nonfinite_total = self._nonfinite_total, total
            more = total - before if before is not None else 0
            values["nonfinite"] = max(more, values.get("nonfinite", 0))
        if values.get("warm_up"):
            values.pop("h_median", None)
        pair = "global_grad_norm", "h_median"
        if "masked" in self.watches and {*pair} <= values.keys():
            numbers = (as_float(values[name]) for name in pair)
            values["masked"] = self._masking.update(*numbers)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON-serialisable values."""
        watches = self.watches.items()
        return {
            "config": {name: dataclasses.asdict(w) for name, w in watches},
            "levels": {name: [*x] for name, x in self._levels.items()},
            "since": dict(self._since),
            "stuck": sorted(self._stuck),
            "nonfinite_total": self._nonfinite_total,
            "masking": self._masking.state_dict(),
            "alarms": [dataclasses.asdict(alarm) for alarm in self._alarms],
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from another monitor's :meth:`state_dict`.

        Args:
            state: What it returned, also after a way through JSON.

        Raises:
            ValueError: A missing key, or a state of other settings. The monitor
                is then unchanged.
        """
        own = self.state_dict()
        if missing := own.keys() - state.keys():
            raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
        if state["config"] != own["config"]:
            raise ValueError(
                f"the state is of a monitor with {state['config']}, this one "
                f"has {own['config']}: make it with the same settings"
            )
        self._set_levels(state["levels"])
        self._since, self._stuck = dict(state["since"]), {*state["stuck"]}
        self._nonfinite_total = state["nonfinite_total"]
        self._masking.set_state_dict(state["masking"])
        self._alarms = [Alarm(**alarm) for alarm in state["alarms"]]

    def _take(self, name: str, step: int, value: float) -> None:
        found = self._abnormal(name, value)
        if found is None:
            self._since.pop(name, None)
            return
        value, usual, score = found
        lasting = self.watches[name].lasting
        since = self._since.setdefault(name, step)
        if step - since + 1 >= lasting:
            start = since if lasting > 1 else step
            self._report(Alarm(name, start, step, value, step, usual, score))

    def _abnormal(
        self, name: str, value: float
    ) -> tuple[float, float, float] | None:
        """Return an abnormal value, what is usual, and the score."""
        watch, levels = self.watches[name], self._levels[name]
        if is_finite := math.isfinite(value):
            level = math.log(max(value, _SMALLEST)) if watch.log else value
            levels.append(level)
            if watch.smoothing == 1 and _is_normal(watch, levels, level):
                return None
        means = np.zeros(0)
        if len(levels) >= watch.smoothing:
            means = sliding_window_view(levels, watch.smoothing).mean(-1)
        if not is_finite:
            usual, _ = _judge(watch, means[-_WINDOW:], math.nan)
            score = math.inf
        elif means.size:
            usual, score = _judge(watch, means[:-1], means[-1])
            value = math.exp(means[-1]) if watch.log else float(means[-1])
        else:
            return None
        return (value, usual, score) if score else None

    def _report(self, new: Alarm) -> None:
        """Add an abnormal value to its series' last event, or begin one."""
        same = (
            i
            for i in reversed(range(len(self._alarms)))
            if self._alarms[i].series == new.series
        )
        last = next(same, None)
        if last is None or new.start - self._alarms[last].end > EVENT_GAP:
            self._alarms.append(new)
            return
        old = self._alarms[last]
        worst = max(old, new, key=self._badness)
        self._alarms[last] = dataclasses.replace(
            worst, start=old.start, end=new.end, usual=old.usual
        )

    def _badness(self, alarm: Alarm) -> tuple[float, float]:
        size = math.inf if math.isnan(alarm.worst) else abs(alarm.worst)
        is_low = self.watches[alarm.series].floor is not None
        return alarm.score, -size if is_low else size


def _is_normal(watch: Watch, levels: Iterable[float], level: float) -> bool:
    """Whether that is seen at a glance: a median is no minimum."""
    if watch.floor is not None:
        return level >= watch.floor
    if watch.limit is not None:
        return level <= watch.limit
    return level <= min(levels) + watch.least


def _judge(watch: Watch, past: np.ndarray, level: float) -> tuple[float, float]:
    """Return the usual value before a level, and its score; 0: normal."""
    if watch.limit is not None:
        return watch.limit, math.inf if level > watch.limit else 0.0
    if watch.floor is not None:
        return watch.floor, math.inf if level < watch.floor else 0.0
    if len(past) < FIRST_JUDGED:
        return math.nan, 0.0
    median = float(np.median(past))
    absolute = np.abs(past - median)
    deviation = float(
        NORMAL_CONSISTENCY * np.median(absolute)
        or math.sqrt(math.pi / 2) * absolute.mean()
    )
    usual = math.exp(median) if watch.log else median
    distance = float(level - median)
    score = distance / deviation if deviation else math.inf
    is_abnormal = distance > watch.least and score > watch.sigma
    return usual, score if is_abnormal else 0.0
