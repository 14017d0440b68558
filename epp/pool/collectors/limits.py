# SPDX-License-Identifier: Apache-2.0
"""Limits on the metrics pages of model servers, and the messages for pages beyond a limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from epp.framework.datalayer import PageError

_KIB, _MIB = 1024, 1024 * 1024


class Limit(StrEnum):
    """What a page has too much of."""

    PAGE_BYTES = "page_bytes"
    PAGE_CHUNKS = "page_chunks"
    PAGE_SECONDS = "page_seconds"
    PAGES_BYTES = "pages_bytes"
    FAMILY_SERIES = "family_series"
    SERIES_BYTES = "series_bytes"


_IN_PART = frozenset({Limit.FAMILY_SERIES, Limit.SERIES_BYTES})


@dataclass(frozen=True, slots=True)
class PageLimits:
    """How much is read of one page of one endpoint."""

    page_bytes: int = 8 * _MIB
    """A larger page is refused."""
    family_series: int = 1000
    """Series of one name that are read: the first ones."""
    series_bytes: int = 64 * _KIB
    """Bytes of all series that are read; a single one may have a quarter of them."""
    arriving_bytes: int = 64 * _MIB
    """Bytes of all pages that are kept whole and not all there yet, beyond the first 64 KiB of each."""


class PageLimitError(PageError):
    """A page is beyond a limit, and is refused, or read in part."""

    def __init__(self, message: str, limit: Limit, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.limit = limit
        self.in_part = limit in _IN_PART
        """Whether what is within the limit is read."""


class ImpossibleValueError(PageError):
    """A page has values that no engine can have; they count as unknown, and the others are read."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"the page says what cannot be: {', '.join(problems[:3])}; that counts as unknown",
            remedy="look at what serves this page, and at engineConfigs of the extractor",
        )


REMEDIES = {
    Limit.PAGE_BYTES: "look at what the server counts, or raise --max-page-size",
    Limit.PAGE_CHUNKS: "look at what is between the server and this program: no server cuts a page so small",
    Limit.PAGE_SECONDS: "look at the server's load and log, or raise timeout of the source",
    Limit.PAGES_BYTES: "look at which endpoints send pages of so many bytes; this one is asked again",
    Limit.FAMILY_SERIES: "look at what the server counts by, or raise --max-page-series",
    Limit.SERIES_BYTES: "look at what the server counts by, or raise --max-series-size",
}


def cut_short(limit: Limit, limits: PageLimits) -> PageLimitError:
    """Return what is said of a page that is read in part."""
    if limit is Limit.FAMILY_SERIES:
        text = f"the page has more than {limits.family_series} series of one name: the first ones are read"
    else:
        text = (
            f"the page has more than {limits.series_bytes} bytes of series to be read, or a quarter of that in one: "
            "the rest is not read"
        )
    return PageLimitError(text, limit, remedy=REMEDIES[limit])
