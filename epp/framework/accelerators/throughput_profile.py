# SPDX-License-Identifier: Apache-2.0
"""Throughput of an endpoint by request size, in the profile format of AIBrix's GPU optimizer."""

from collections.abc import Sequence
from math import log2

from epp.framework.limits import NonNegative, Positive
from epp.framework.plugin import Parameters


class ThroughputProfile(Parameters, frozen=True, forbid_unknown_fields=False):
    """Throughput of one GPU by request size; keys that AIBrix writes beyond these are ignored."""

    gpu: str
    """Name of the device or of its AcceleratorClass, case-insensitive."""
    tputs: tuple[tuple[NonNegative, ...], ...]
    """Requests per second: one row for each output length, in it one number for each input length."""
    indexes: tuple[tuple[Positive, ...], tuple[Positive, ...]]
    """Output lengths, then input lengths, in tokens."""
    cost: NonNegative | None = None
    """Hourly price of an endpoint in US dollars, if its accelerator has none."""

    def __post_init__(self) -> None:
        """Refuse tables that do not match the lengths."""
        outputs, inputs = self.indexes
        if not outputs or not inputs or len(self.tputs) != len(outputs):
            raise ValueError(f"tputs of {self.gpu!r} needs one row for each of the {len(outputs)} output lengths")
        if any(len(row) != len(inputs) for row in self.tputs):
            raise ValueError(
                f"each row of tputs of {self.gpu!r} needs {len(inputs)} numbers, one for each input length"
            )

    def requests_per_second(self, input_tokens: float, output_tokens: float, tolerance: float) -> float | None:
        """Return the number for the nearest lengths; None if one is more than `tolerance` powers of 2 away."""
        row = _nearest(self.indexes[0], output_tokens, tolerance)
        column = _nearest(self.indexes[1], input_tokens, tolerance)
        return None if row is None or column is None else self.tputs[row][column]


def _nearest(lengths: Sequence[float], tokens: float, tolerance: float) -> int | None:
    wanted = log2(max(tokens, 1.0))
    distance, position = min((abs(log2(length) - wanted), position) for position, length in enumerate(lengths))
    return position if distance <= tolerance else None
