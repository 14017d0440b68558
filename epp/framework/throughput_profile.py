"""How many requests of each size an endpoint with some GPU serves in a second, as AIBrix's GPU optimizer has it."""

from collections.abc import Sequence
from math import log2

from epp.framework.limits import NonNegative, Positive
from epp.framework.plugin import Parameters


class ThroughputProfile(Parameters, frozen=True, forbid_unknown_fields=False):
    """One GPU's table; a profile that AIBrix wrote is taken as it is, and what else it holds is passed over."""

    gpu: str
    """Name of the device or of its AcceleratorClass, in any case."""
    tputs: tuple[tuple[NonNegative, ...], ...]
    """Requests a second: one row for each output length, one number in it for each input length."""
    indexes: tuple[tuple[Positive, ...], tuple[Positive, ...]]
    """The output lengths, then the input lengths, in tokens."""
    cost: NonNegative | None = None
    """US dollars an hour of an endpoint, where its accelerator has no price."""

    def __post_init__(self) -> None:
        """Refuse tables whose rows and columns do not match the lengths."""
        outputs, inputs = self.indexes
        if not outputs or not inputs or len(self.tputs) != len(outputs):
            raise ValueError(f"tputs of {self.gpu!r} needs one row for each of the {len(outputs)} output lengths")
        if any(len(row) != len(inputs) for row in self.tputs):
            raise ValueError(
                f"each row of tputs of {self.gpu!r} needs {len(inputs)} numbers, one for each input length"
            )

    def requests_per_second(self, input_tokens: float, output_tokens: float, tolerance: float) -> float | None:
        """Return the number of the nearest lengths by logarithm; None if one is further off than 2 to the tolerance."""
        row = _nearest(self.indexes[0], output_tokens, tolerance)
        column = _nearest(self.indexes[1], input_tokens, tolerance)
        return None if row is None or column is None else self.tputs[row][column]


def _nearest(lengths: Sequence[float], tokens: float, tolerance: float) -> int | None:
    wanted = log2(max(tokens, 1.0))
    distance, position = min((abs(log2(length) - wanted), position) for position, length in enumerate(lengths))
    return position if distance <= tolerance else None
