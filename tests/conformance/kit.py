# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hold an implementation of AdaGC against cases.json, with NumPy alone.

``python kit.py MODULE:FUNCTION`` prints a table. The function gets a
:class:`Case` and returns for each step a pair of dicts by the tensor's name:
the clipped gradients (None: missing), and gamma, or None if it is not known.
What it cannot do, such as several ranks, raises NotImplementedError.
"""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np

CASES = Path(__file__).with_name("cases.json")
TOLERANCE = 1e-5  # of float32, relative


@dataclasses.dataclass
class Case:
    """A sequence of gradients."""

    name: str
    arguments: dict  # lambda_rel, beta, lambda_abs, t_start
    steps: list  # of dicts: name -> float32 array, the whole tensor's; or None
    answers: list  # of dicts: h and gamma, each by name
    num_ranks: int = 1
    split: list = dataclasses.field(default_factory=list)
    """Tensors of which each rank holds half."""

    experts: dict = dataclasses.field(default_factory=dict)
    """Tensors that only one rank holds, and that rank; of the rest, which are
    not split, each rank holds a copy."""

    resume_after: int = -1
    """Steps after which the state goes into a new clip; -1: never."""

    open: bool = False
    """The paper leaves it open, and the answer is this package's."""

    def on_rank(self, rank):
        """Return the gradients that a rank holds, for each step."""
        held = []
        for gradients in self.steps:
            mine = {}
            for name, gradient in gradients.items():
                if self.experts.get(name, rank) != rank:
                    continue
                if name in self.split and gradient is not None:
                    gradient = np.split(gradient, self.num_ranks)[rank]
                mine[name] = gradient
            held.append(mine)
        return held

    def joined(self, ranks):
        """Join what each rank returned into what the function returns."""
        steps = []
        for pairs in zip(*ranks, strict=True):
            out, gamma = {}, {}
            for rank_out, rank_gamma in pairs:
                for name, part in rank_out.items():
                    if name in self.split and name in out:
                        out[name] = np.concatenate([out[name], part])
                    else:
                        _put(out, name, part)
                for name, number in rank_gamma.items():
                    _put(gamma, name, number)
            steps.append((out, gamma))
        return steps


def _put(values, name, value):
    """Add a value of a rank, which has to be that of the others."""
    known = values.setdefault(name, value)
    if value is not None and not np.allclose(known, value, equal_nan=True):
        raise ValueError(f"ranks disagree about {name}: {known}, {value}")


def read_cases():
    """Read the cases."""
    found = []
    for about in json.loads(CASES.read_text()):
        steps = [
            {
                name: None if g is None else np.array(g, np.float32)
                for name, g in gradients.items()
            }
            for gradients in about.pop("steps")
        ]
        found.append(Case(steps=steps, **about))
    return found


def first_difference(case, steps):
    """Return where steps differ from the answers; "" if nowhere."""
    if len(steps) != len(case.answers):
        return f"{len(steps)} steps, not {len(case.answers)}"
    for t, (answer, (out, gamma)) in enumerate(
        zip(case.answers, steps, strict=True)
    ):
        expected = {
            name: h * np.nan_to_num(case.steps[t][name], posinf=0.0)
            for name, h in answer["h"].items()
        }
        held = [("gradient", expected, out)]
        if gamma is not None:
            held.append(("gamma", answer["gamma"], gamma))
        for what, answers, got in held:
            for name, value in answers.items():
                wanted, given = np.asarray(value), got.get(name)
                if given is None:
                    return f"step {t}: no {what} of {name}"
                given = np.asarray(given, np.float64)
                size = max(np.abs(wanted).max(), 1e-12)
                error = np.abs(given - wanted).max() / size
                if not error <= TOLERANCE:
                    ours, theirs = np.linalg.norm(wanted), np.linalg.norm(given)
                    return (
                        f"step {t}, {what} of {name}: {theirs:.5g} for "
                        f"{ours:.5g}"
                    )
    return ""


def check(run):
    """Return of each case its name, "holds" or not, and a difference."""
    rows = []
    for case in read_cases():
        try:
            with np.errstate(all="ignore"):
                text = first_difference(case, run(case))
            verdict = "differs" if text else "holds"
        except NotImplementedError as error:
            verdict, text = "not run", str(error)
        except Exception as error:
            verdict, text = "fails", repr(error)
        rows.append((case.name + " *" * case.open, verdict, text))
    return rows


def table(rows):
    """Return the rows as a table; * marks what the paper leaves open."""
    lines = [
        "| case | holds | first difference (a norm) |",
        "|---|---|---|",
    ]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def main(words):
    """Check the function that the command line names, MODULE:FUNCTION.

    Returns 1 if a case differs that the paper settles, 2 without a function.
    """
    module, _, name = "".join(words).partition(":")
    if not name:
        print(__doc__)
        return 2
    sys.path.insert(0, ".")
    rows = check(getattr(importlib.import_module(module), name))
    print(table(rows))
    settled = [row for row in rows if not row[0].endswith(" *")]
    return int(any(row[1] in ("differs", "fails") for row in settled))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
