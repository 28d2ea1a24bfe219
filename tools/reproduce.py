# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproduce the paper's tables and figures at the size of this machine.

    python tools/reproduce.py quickstart
    python tools/reproduce.py table-spike-score --jobs 2 --seeds 3
    python tools/reproduce.py all --dry-run
    python tools/reproduce.py my_grid.yaml
    python tools/reproduce.py tables

TARGET names a file in configs/experiments, or is the path of your own .yaml
file in their format; "all" is every file there. A target runs its grid of
paired runs, adds them to OUTPUT/results and writes OUTPUT/TARGET/report.html.
Targets share finished runs, and the same command resumes after a kill.

"tables" writes the tables and figures of the pages from results/.
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

GRIDS = command.ROOT / "configs" / "experiments"
RESULTS = command.ROOT / "results"

_RUN_OPTIONS = """
--output OUTPUT   folder for runs and reports (default: %(default)s)
--results FOLDER  add the rows to the results here (default: OUTPUT/results)
--steps STEPS     steps of every run (default: the config's)
--seeds N         the first N seeds of every experiment (default: all)
--jobs JOBS       runs at a time (default: %(default)s, the number of cores)
--only NAME       this experiment of the target alone
--dry-run         list what would run, and about how long it takes
"""
_TABLE_OPTIONS = """
--check           change nothing; exit status 1 if a table differs
--add FOLDER      first add the results of another folder; runs that are there
                  stay
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1: ``tables --check`` found a difference."""
    given = sys.argv[1:] if arguments is None else arguments
    targets = sorted(path.stem for path in GRIDS.glob("*.yaml"))
    own = [argument for argument in given if _is_path(argument)]
    parser = command.make_parser("reproduce", __doc__)
    commands = parser.add_subparsers(
        dest="target",
        metavar="TARGET",
        required=True,
        help=", ".join([*targets, "all", "PATH.yaml", "tables"]),
    )
    for target in dict.fromkeys([*targets, "all", *own]):
        command.add_options(
            commands.add_parser(target),
            _RUN_OPTIONS,
            output={"type": Path, "default": Path("outputs")},
            results={"type": Path},
            steps={"type": int},
            jobs={"type": int, "default": os.cpu_count() or 1},
        )
    command.add_options(commands.add_parser("tables"), _TABLE_OPTIONS)
    options = parser.parse_args(arguments)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        run = _tables if options.target == "tables" else _reproduce
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
    os.environ["OMP_NUM_THREADS"] = "1"  # of each run, which is forked
    from adagc_lab.reproduce import store
    from adagc_lab.reproduce.targets import Target, effort, plan_text

    from paddle_adagc.checks import check_integer

    check_integer("jobs", options.jobs, 1)
    if options.seeds is not None:
        check_integer("seeds", options.seeds, 1)
    # As on Ctrl-C the runs are stopped, too; they can be resumed. Not earlier:
    # the import of Paddle takes the signal for itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    paths = [GRIDS / f"{options.target}.yaml"]
    if options.target == "all":
        paths = sorted(GRIDS.glob("*.yaml"))
    elif _is_path(options.target):
        paths = [Path(options.target)]
    targets = [
        Target.plan(
            path,
            options.output,
            max_steps=options.steps,
            num_seeds=options.seeds,
            only=options.only,
        )
        for path in paths
    ]
    known = store.load(RESULTS)
    if options.dry_run:
        print(plan_text(targets, known))
        print("the same command without --dry-run runs them")
        return 0
    results = options.results or options.output / "results"
    for target in targets:
        print(f"{target.name}: {effort(target.missing(), known)}", flush=True)
        print("open", target.run(options.output, results, options.jobs))
    return 0


def _tables(options: argparse.Namespace) -> int:
    _check_extras()
    from adagc_lab.reproduce import pages, store

    if options.add:
        added = store.merge(RESULTS, options.add)
        print(f"added results of {', '.join(added)}")
    stale = pages.differences(command.ROOT)
    if not options.check:
        written = pages.write(command.ROOT)
        print(f"wrote {', '.join(written) or 'nothing: every table fits'}")
    elif stale:
        print(
            f"{stale}\nrun `python tools/reproduce.py tables`", file=sys.stderr
        )
    else:
        print("every table is what the results give")
    return int(bool(stale) and options.check)


def _check_extras() -> None:
    check_installed("paddlenlp", "nlp")
    for module in ("matplotlib", "pandas", "scipy"):
        check_installed(module, "report")


if __name__ == "__main__":
    raise SystemExit(main())
