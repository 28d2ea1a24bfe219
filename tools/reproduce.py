# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproduce the paper's tables and figures at the size of this machine.

    python tools/reproduce.py quickstart
    python tools/reproduce.py table-spike-score --jobs 2
    python tools/reproduce.py all --jobs 2
    python tools/reproduce.py my_grid.yaml
    python tools/reproduce.py report --collect outputs

TARGET names a file in configs/experiments, or is the path of your own .yaml
file in their format; "all" runs every target that decides a claim in
configs/claims.yaml. A target runs its grid of paired runs and writes
OUTPUT/TARGET/report.html, tables.md and results.jsonl. Targets share finished
runs, and the same command resumes after a kill.

"report" writes docs/results.md, docs/results/, their figures and the READMEs'
tables from results/. "verify" recomputes all of it with separate code.
"TARGET --help" shows the options of a target.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import command
from adagc_lab import check_installed

from paddle_adagc.files import atomic_write

GRIDS = command.ROOT / "configs" / "experiments"
CLAIMS = command.ROOT / "configs" / "claims.yaml"
RESULTS = command.ROOT / "results"
DOCS = command.ROOT / "docs"


_RUN_OPTIONS = """
--output OUTPUT   folder for runs and reports (default: %(default)s)
--steps STEPS     steps of every run (default: the config's); faults scale with
                  it
--jobs JOBS       runs at a time (default: %(default)s, the number of cores)
--only NAME       this experiment of the target alone
"""
_REPORT_OPTIONS = """
--collect OUTPUT  first add the results of targets that ran with --output OUTPUT
--check           change nothing; exit status 1 if a page is out of date
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1: ``report --check`` or ``verify`` found something."""
    given = sys.argv[1:] if arguments is None else arguments
    targets = sorted(path.stem for path in GRIDS.glob("*.yaml"))
    own = [argument for argument in given if _is_path(argument)]
    parser = command.make_parser("reproduce", __doc__)
    commands = parser.add_subparsers(
        dest="target",
        metavar="TARGET",
        required=True,
        help=", ".join([*targets, "all", "PATH.yaml", "report", "verify"]),
    )
    for target in dict.fromkeys([*targets, "all", *own]):
        command.add_options(
            commands.add_parser(target),
            _RUN_OPTIONS,
            output={"type": Path, "default": Path("outputs")},
            steps={"type": int},
            jobs={"type": int, "default": os.cpu_count() or 1},
        )
    report = commands.add_parser("report")
    command.add_options(report, _REPORT_OPTIONS, collect={"type": Path})
    commands.add_parser("verify")
    options = parser.parse_args(arguments)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        others = {"report": _report, "verify": _verify}
        run = others.get(options.target, _reproduce)
        return command.exit_status(
            parser, run, options, (*command.ERRORS, RuntimeError)
        )
    except KeyboardInterrupt:
        print("\nstopped: the same command resumes", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)


def _is_path(target: str) -> bool:
    return target.endswith((".yaml", ".yml"))


def _reproduce(options: argparse.Namespace) -> int:
    if _is_path(options.target):
        command.check_config_file(options.target)
    _check_extras()
    from adagc_lab.reproduce import running

    running.preload()
    from adagc_lab.reproduce.claims import load_claims, targets_of
    from adagc_lab.reproduce.pages import load_all_results
    from adagc_lab.reproduce.targets import reproduce

    # As on Ctrl-C the runs are stopped, too; they can be resumed. Not earlier:
    # the import of Paddle takes the signal for itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    claims = load_claims(CLAIMS).claims
    committed = load_all_results(RESULTS)
    names = targets_of(claims) if options.target == "all" else [options.target]
    grids = [GRIDS / f"{name}.yaml" for name in names]
    if _is_path(options.target):
        grids, claims, committed = [Path(options.target)], [], {}
    finished = reproduce(
        grids,
        options.output,
        max_steps=options.steps,
        claims=claims,
        committed=committed,
        num_jobs=options.jobs,
        only=options.only,
    )
    for target in finished:
        print(target.text)
    for target in finished:
        print(f"report: {target.report or target.directory}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    check_installed("scipy", "report")
    from adagc_lab.reproduce.verify import verify

    return verify(RESULTS, DOCS)


def _report(options: argparse.Namespace) -> int:
    _check_extras()
    from adagc_lab.committed import differences
    from adagc_lab.reproduce.claims import load_claims
    from adagc_lab.reproduce.pages import (
        collect_results,
        load_all_results,
        made_files,
    )
    from adagc_lab.reproduce.pool import Catalogue

    grids = {path.stem: path for path in sorted(GRIDS.glob("*.yaml"))}
    if options.collect is not None:
        if options.check:
            raise ValueError("--check changes nothing: leave out --collect")
        for path in collect_results(options.collect, RESULTS, [*grids]):
            print(f"collected: {path}")
    results = load_all_results(RESULTS)
    made = made_files(
        load_claims(CLAIMS), Catalogue(grids), results, DOCS, RESULTS
    )
    stale = {}
    for path, text in made.items():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if found := differences(present, text):
            stale[path] = found
    if not stale:
        print("every page is what the results give")
    elif options.check:
        for path, found in stale.items():
            print(f"{path.name}: {'; '.join(found)}", file=sys.stderr)
        print(
            f"not what the results in {RESULTS.name} give: run "
            "`python tools/reproduce.py report`",
            file=sys.stderr,
        )
        return 1
    else:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, made[path])
        print(f"wrote {', '.join(path.name for path in stale)}")
    return 0


def _check_extras() -> None:
    check_installed("paddlenlp", "nlp")
    for module in ("jinja2", "scipy"):
        check_installed(module, "report")


if __name__ == "__main__":
    raise SystemExit(main())
