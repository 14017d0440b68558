# SPDX-License-Identifier: Apache-2.0
"""Limits on the pages of endpoints, and the flags that set them."""

from dataclasses import dataclass
from typing import Final

from epp.runtime.flags import SIZE, flag

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Limits on one page of one endpoint."""

    page_bytes: int = flag(
        8 * _MIB,
        "Largest metrics response of an endpoint that is read; larger ones are refused.",
        SIZE,
        name="--max-page-size",
    )
    family_series: int = flag(
        1000,
        "Number of series of one name that are read from an endpoint's page: the first ones.",
        "COUNT",
        name="--max-page-series",
        min=1,
    )
    series_bytes: int = flag(
        64 * _KIB,
        "Most bytes of series that are read from an endpoint's page; a single series can have a quarter of them. "
        "Requests wait while they are read: some milliseconds for 64Ki.",
        SIZE,
        name="--max-series-size",
    )
    arriving_bytes: int = 64 * _MIB
    """Most bytes of all incomplete pages that are buffered whole, beyond the first 64 KiB of each."""
