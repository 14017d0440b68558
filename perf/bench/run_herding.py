# SPDX-License-Identifier: Apache-2.0
"""Herding in virtual time with more pickers and staleness, by picker plugin: `make bench-herding`."""

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from epp.config import LoadedConfig, load_text
from epp.config.load import sample_texts
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.outcome import Outcome, Status, merge
from perf.bench.profiles import two_choices
from perf.bench.profiles.equal_fleet import WORKLOADS, run

_TWO_CHOICES = f"{two_choices.__name__}:{two_choices.TwoChoices.__name__}"
PICKERS: Mapping[str, str] = MappingProxyType(
    {
        "best": "{type: max-score-picker}",
        "one-of-best-2": "{type: random-picker, parameters: {topN: 2}}",
        "weighted-0.05": "{type: weighted-random-picker, parameters: {temperature: 0.05}}",
        "weighted-0.2": "{type: weighted-random-picker, parameters: {temperature: 0.2}}",
        "two-choices": f"{{type: '{_TWO_CHOICES}'}}",
        "two-choices-of-best-3": f"{{type: '{_TWO_CHOICES}', parameters: {{topN: 3}}}}",
    }
)
"""Picker plugins, by short name."""


class Case(NamedTuple):
    """One replay."""

    workload: str
    picker: str
    pickers: int
    stale_seconds: float
    shares: bool
    seed: int
    load: float
    requests: int


class Figures(NamedTuple):
    """One row of the table."""

    p90: float
    hits: float
    """Share of prompt tokens in the caches of engines."""
    failed: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(
            "90th percentile of the time to the first token with several pickers of the profile `adaptive`, divided by "
            "that of one picker that picks the best, on six simulated A100; then cache hits. D is the interval of "
            "polls, and the delay of shared state between pickers."
        )
    )
    parser.add_argument("--workloads", default="chats,hot-prefixes", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--ways", default="best", help=f"of picking; of {', '.join(PICKERS)}")
    parser.add_argument("--pickers", default="1,4,16")
    parser.add_argument("--staleness", default="20,200,1000", help="D, in milliseconds")
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--load", type=float, default=0.65, help="share of the capacity with perfect caches")
    parser.add_argument("--requests", type=int, default=1500)
    return parser.parse_args()


def config_of(picker: str) -> LoadedConfig:
    """Return the profile `adaptive` with this picker plugin."""
    text = sample_texts()["adaptive"]
    text = text.replace("schedulingProfiles:\n", f"- {PICKERS[picker][:-1]}, name: the-picker}}\nschedulingProfiles:\n")
    return load_text(text + "  - pluginRef: the-picker\n", f"adaptive, {picker}")


def measure(case: Case) -> Outcome:
    options = ReplayOptions(
        pickers=case.pickers,
        share_seconds=case.stale_seconds if case.shares else None,
        poll_seconds=case.stale_seconds,
        plugin_modules=(two_choices.__name__,),
        regret_every=0,
    )
    config = config_of(case.picker)
    return run(
        case.workload,
        config,
        load=case.load,
        make="vllm",
        seed=case.seed,
        requests=case.requests,
        options=options,
    )


def figures(outcome: Outcome) -> Figures:
    """Return the row of an outcome; requests without a first token count as infinitely late."""
    columns = outcome.columns
    served = columns.status == Status.SERVED
    times = np.where(served, columns.ttft, np.inf)
    hits = columns.cached_tokens[served].sum() / columns.prompt_tokens[served].sum()
    return Figures(float(np.quantile(times, 0.9)), float(hits), int((~served).sum()))


def cases(given: argparse.Namespace) -> list[tuple[Case, ...]]:
    """Return the replays of each row; for each workload and staleness, a single picker that picks the best is first."""
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = []
    for workload, milliseconds in product(given.workloads.split(","), given.staleness.split(",")):
        rows = [("best", 1, False)]
        for way, number in product(given.ways.split(","), map(int, given.pickers.split(","))):
            rows += [(way, number, shares) for shares in ((True, False) if number > 1 else (False,))]
        for way, number, shares in dict.fromkeys(rows):
            stale = float(milliseconds) / 1000
            found.append(
                tuple(Case(workload, way, number, stale, shares, seed, given.load, given.requests) for seed in seeds)
            )
    return found


def main() -> None:
    given = arguments()
    rows = cases(given)
    print(
        f"{'workload':14} {'D':>7} {'pickers':>8} {'':10} {'way':24} "
        f"{'p90, ms':>9} {'ratio':>6} {'hits':>6} {'late':>5}"
    )
    one = np.nan
    with ProcessPoolExecutor(2) as pool:
        outcomes = pool.map(measure, [case for row in rows for case in row])
        for row in rows:
            case, its = row[0], figures(merge([next(outcomes) for _ in row]))
            if case.pickers == 1 and case.picker == "best":
                one = its.p90
            shares = "shared" if case.shares else "alone"
            print(
                f"{case.workload:14} {case.stale_seconds * 1000:4.0f} ms {case.pickers:8} {shares:10} {case.picker:24} "
                f"{its.p90 * 1000:9.0f} {its.p90 / one:6.2f} {its.hits:6.1%} {its.failed:5}",
                flush=True,
            )


if __name__ == "__main__":
    main()
