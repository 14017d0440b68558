# SPDX-License-Identifier: Apache-2.0
"""Durations as configuration files write them: `50ms`, `1s`, `1m30s`."""

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Return seconds: the sum of numbers with a unit each, or a bare `0`; raises ValueError for anything else."""
    if text == "0":
        return 0.0
    seconds, end = 0.0, 0
    while part := _PART.match(text, end):
        seconds += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    if not text or end != len(text):
        raise ValueError(
            f"{text!r} is not a duration: write numbers with a unit (ns, us, ms, s, m, h), such as '50ms' or '1m30s'"
        )
    return seconds
