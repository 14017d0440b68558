# SPDX-License-Identifier: Apache-2.0
"""What one request takes of the accelerators of an endpoint; 0 where these are not known, as it cannot be counted."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates

_SECONDS_PER_HOUR = 3600.0


def memory_share(tag: AcceleratorTag, requests: int) -> float:
    """Return the bytes of one of so many requests that an endpoint serves at once."""
    return (tag.total_memory_bytes or 0) / requests


def tflops_share(tag: AcceleratorTag, requests: int) -> float:
    """Return its fp16 TFLOPS."""
    tflops = tag.tflops()
    return tflops / requests if isfinite(tflops) and tflops > 0 else 0.0


def devices(tag: AcceleratorTag) -> float:
    """Return the number of accelerator devices, or slices."""
    return float(max(tag.count, 1)) if tag.has_accelerator else 0.0


def dollars_per_second(tag: AcceleratorTag) -> float:
    """Return the price of the whole endpoint."""
    price = tag.cost_per_hour()
    return price / _SECONDS_PER_HOUR if price is not None and isfinite(price) and price > 0 else 0.0


class Share(NamedTuple):
    """Part of an endpoint that one request takes."""

    tag: AcceleratorTag
    accelerator_bytes: float = 0.0
    tflops: float = 0.0

    @classmethod
    def of(cls, tag: AcceleratorTag, requests: int) -> "Share":
        """Return that of one of so many requests."""
        return cls(tag, memory_share(tag, requests), tflops_share(tag, requests))


def sum_of_memory(shares: Sequence[Share]) -> float:
    """Return the bytes of all; those of most requests are one."""
    return shares[0].accelerator_bytes if len(shares) == 1 else sum(share.accelerator_bytes for share in shares)


def sum_of_tflops(shares: Sequence[Share]) -> float:
    """Return the TFLOPS of all."""
    return shares[0].tflops if len(shares) == 1 else sum(share.tflops for share in shares)


def memory_shares(candidates: Candidates, requests: int) -> Floats:
    """Return `memory_share` for each candidate."""
    return tag_numbers(candidates, memory_share, requests)


def tflops_shares(candidates: Candidates, requests: int) -> Floats:
    """Return `tflops_share` for each candidate."""
    return tag_numbers(candidates, tflops_share, requests)


def device_counts(candidates: Candidates) -> Floats:
    """Return `devices` for each candidate."""
    return tag_numbers(candidates, devices)


def prices(candidates: Candidates) -> Floats:
    """Return `dollars_per_second` for each candidate."""
    return tag_numbers(candidates, dollars_per_second)
