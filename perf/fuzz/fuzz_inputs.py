# SPDX-License-Identifier: Apache-2.0
"""Inputs for a fuzz target: its corpus, random mutations of it, then bytes that atheris chooses by coverage.

    python -m perf.fuzz.fuzz_inputs session|bodies|exposition|config [--runs N] [--seed N] [--coverage DIRECTORY]

Stops at the first input that raises an undeclared exception, and writes it to a file.
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from random import Random

import structlog

from perf.fuzz.targets import CORPORA, TARGETS, corpus, mutated, new_target


def at_random(name: str, runs: int, seed: int) -> None:
    """Run the corpus and a number of mutations of it."""
    random, inputs = Random(seed), list(corpus(name).values())
    began, slowest = time.monotonic(), 0.0
    with new_target(name) as target:
        for number in range(len(inputs) + runs):
            content = inputs[number] if number < len(inputs) else mutated(random, inputs)
            at = time.monotonic()
            try:
                target(content)
            except Exception:
                crash = Path(f"crash-{name}-{seed}-{number}")
                crash.write_bytes(content)
                print(f"{name}: the input is in {crash}")
                raise
            slowest = max(slowest, time.monotonic() - at)
    seconds = time.monotonic() - began
    print(f"{name}, seed {seed}: {len(inputs)} files and {runs:,} changes in {seconds:.0f} s, {slowest:.3f} s at most")


def by_coverage(name: str, runs: int, directory: Path) -> None:
    """Let libFuzzer choose inputs; it stores them in the directory, and ends the process."""
    import atheris  # noqa: PLC0415  only this needs it

    with atheris.instrument_imports(include=list(TARGETS[name][1])), contextlib.ExitStack() as stack:
        target = stack.enter_context(new_target(name))
        stack.pop_all()  # libFuzzer ends the process itself
    directory.mkdir(parents=True, exist_ok=True)
    options = (f"-runs={runs}", "-max_len=8192", "-rss_limit_mb=4096", "-timeout=60", "-print_final_stats=1")
    atheris.Setup([sys.argv[0], *options, str(directory), str(CORPORA / name)], target)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", type=Path, metavar="DIRECTORY", help="choose by coverage; directory for inputs")
    parser.add_argument("--input", type=Path, help="run only this file, such as the input of a crash")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(os.devnull, "w")))  # noqa: SIM115, PTH123  till the end
    if given.input:
        with new_target(given.target) as target:
            target(given.input.read_bytes())
    elif given.coverage:
        by_coverage(given.target, given.runs, given.coverage)
    else:
        at_random(given.target, given.runs, given.seed)


if __name__ == "__main__":
    main()
