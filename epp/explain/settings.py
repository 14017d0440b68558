# SPDX-License-Identifier: Apache-2.0
"""Settings of decision records, and the flags that set them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epp.runtime.flags import COUNT, SIZE, SWITCH, flag

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """Which decisions are recorded, and where; failed requests always are, up to a number per second."""

    sample_rate: float = flag(
        0,
        "Share of the requests whose decisions are recorded, 0 to 1, for `epp explain`, /api/decisions of the "
        "admin port, and --decision-file. Failed requests are always recorded, at most ten per second.",
        "SHARE",
        name="--decision-sample-rate",
        min=0,
        max=1,
    )
    asked_by_header: bool = False
    """Whether a header of a request can ask for a record; it is removed unless a trusted gateway sent it."""
    buffer: int = flag(1000, "Number of latest decisions kept in memory.", "COUNT", name="--decision-buffer", min=0)
    buffer_bytes: int = flag(16 * _MIB, "Largest total size of these decisions.", SIZE, name="--decision-buffer-size")
    file: Path | None = flag(
        None, "Write each decision that is recorded into this file, as a line of JSON.", "FILE", name="--decision-file"
    )
    file_bytes: int = flag(
        64 * _MIB,
        "Size at which --decision-file is rotated: FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on.",
        SIZE,
        name="--decision-file-size",
    )
    file_count: int = flag(
        5, "Number of decision files, including the current one.", COUNT, name="--decision-file-count"
    )

    prefixes: bool = flag(
        False,
        "Add hashes of the blocks of each prompt to the records, with a key that only this process knows, so that a "
        "trace has the shared prefixes.",
        SWITCH,
        name="--decision-file-prefixes",
    )

    @property
    def records_routed(self) -> bool:
        """Whether requests are recorded that do not fail."""
        return self.sample_rate > 0 or self.asked_by_header
