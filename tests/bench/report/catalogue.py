# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: what each measures, and its target."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row; the target is in the row's unit, the most that it may be."""

    id: str
    title: str
    unit: str
    reference: float | None = None
    """What the Go picker took on the machine where the targets were set."""
    share: float | None = None
    """The target as a share of the Go picker's figure."""
    most: float | None = None
    """The target by itself, where there is no such share."""

    @property
    def target(self) -> float | None:
        if self.reference is not None and self.share is not None:
            return self.reference * self.share
        return self.most


WIRE = (
    Row("request-16", "400 B prompt, full duplex, 16 connections", "us", reference=187, share=0.8),
    Row("request-64", "the same, 64 connections", "us", reference=177, share=0.8),
    Row("request-320", "the same at 320 requests/s", "us", reference=273, share=0.8),
    Row("piece", "response piece of an SSE stream", "us", reference=15.6, share=0.5),
    Row("prompt-64k", "64 KB prompt", "us", reference=1437, share=0.25),
    Row("prompt-1m", "1 MB prompt", "us", reference=14_700, share=0.1),
    Row("few-16", "400 B prompt, 16 connections, request body BUFFERED, response body NONE", "us"),
)
ROWS = (*WIRE,)
BY_ID = {row.id: row for row in ROWS}
