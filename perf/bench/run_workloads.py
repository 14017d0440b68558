# SPDX-License-Identifier: Apache-2.0
"""Compares a profile with others on equal servers, by workload: `make bench-workloads`."""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np

from epp.lab.replay.comparison import Difference, compare
from epp.lab.replay.outcome import Outcome, merge
from perf.bench.profiles.equal_fleet import PROFILES, WORKLOADS, run

_FIGURES = ("ttft.p90", "total.p90")


class Case(NamedTuple):
    """One replay."""

    workload: str
    load: float
    make: str
    profile: str
    seed: int
    requests: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(
            "90th percentile of the time to the first token and of the whole request in seconds, of the first profile "
            "divided by that of each other profile, on six simulated A100; `+` and `-` mark better and worse by 95 %% "
            "intervals. Then the time of the first profile, its mean regret, and its cache hits."
        )
    )
    parser.add_argument("--profiles", default=",".join(PROFILES), help="separated by commas; by default all")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--loads", default="0.4,0.65", help="shares of the capacity with perfect caches")
    parser.add_argument("--makes", default="vllm,small-batches", help="makes of engines")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--requests", type=int, default=2000)
    return parser.parse_args()


def measure(case: Case) -> Outcome:
    return run(case.workload, case.profile, load=case.load, make=case.make, seed=case.seed, requests=case.requests)


def rows(given: argparse.Namespace) -> Iterator[tuple[tuple[str, float, str], list[Outcome]]]:
    """Yield a workload, a load and a make with the outcome of each profile, all seeds together."""
    profiles, seeds = given.profiles.split(","), [int(seed) for seed in given.seeds.split(",")]
    kinds = list(product(given.workloads.split(","), map(float, given.loads.split(",")), given.makes.split(",")))
    cases = [Case(*kind, profile, seed, given.requests) for kind in kinds for profile in profiles for seed in seeds]
    with ProcessPoolExecutor(2) as pool:
        found = pool.map(measure, cases)
        for kind in kinds:
            yield kind, [merge([next(found) for _ in seeds]) for _ in profiles]


def main() -> None:
    given = arguments()
    first, *others = given.profiles.split(",")
    print(f"{'':42} {'p90 of ' + first:>16} {'regret':>7} {'hits':>5} ", *(f"{name[:24]:>24}" for name in others))
    ratios: dict[str, list[list[float]]] = {name: [] for name in others}
    for (workload, load, make), outcomes in rows(given):
        compared = compare(outcomes)
        its = [compared[0].figures[name].value or np.inf for name in _FIGURES]
        columns = outcomes[0].columns
        hits = columns.cached_tokens.sum() / columns.prompt_tokens.sum()
        cells = []
        for name, other in zip(others, compared[1:], strict=True):
            theirs = [other.figures[figure].value or np.inf for figure in _FIGURES]
            ratios[name].append([mine / of_other for mine, of_other in zip(its, theirs, strict=True)])
            marks = [_mark(other.differences[figure]) for figure in _FIGURES]
            cells.append(" ".join(f"{ratio:6.2f}{mark}" for ratio, mark in zip(ratios[name][-1], marks, strict=True)))
        times = f"{its[0]:8.3f} {its[1]:7.2f}"
        print(
            f"{workload:15} {load:5.0%} {make:20} {times} {np.nanmean(columns.regret):7.3f} {hits:5.2f} ",
            *(f"{cell:>24}" for cell in cells),
            flush=True,
        )
    print(f"{'median':42} {'':30}", *(f"{_medians(found):>24}" for found in ratios.values()))


def _mark(difference: Difference) -> str:
    """Return the comparison of the first profile with another."""
    return {"worse": "+", "better": "-"}.get(difference.verdict, " ")


def _medians(found: Sequence[Sequence[float]]) -> str:
    return " ".join(f"{statistics.median(column):6.2f} " for column in zip(*found, strict=True))


if __name__ == "__main__":
    main()
