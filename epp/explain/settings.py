# SPDX-License-Identifier: Apache-2.0
"""Which decisions are recorded, and where the records go."""

from dataclasses import dataclass
from pathlib import Path

DEFAULT_BUFFER = 1000
DEFAULT_BUFFER_BYTES = 16 * 1024 * 1024
DEFAULT_FILE_BYTES = 64 * 1024 * 1024
DEFAULT_FILE_COUNT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """A file of records, one on a line."""

    path: Path
    most_bytes: int = DEFAULT_FILE_BYTES
    """Size from which another file is begun."""
    count: int = DEFAULT_FILE_COUNT
    """Files that are kept, this one included: the others end in `.1`, the latest of them, `.2` and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """Requests that fail are recorded in any case, some each second."""

    sample_rate: float = 0.0
    """Share of all requests that is recorded, 0..1."""
    asked_by_header: bool = False
    """Whether a request can ask for it: its header has been left out where it came from no trusted gateway."""
    buffer: int = DEFAULT_BUFFER
    """Records that are kept in memory."""
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    """The most that they take."""
    file: FileSettings | None = None
    """None for no file."""

    @property
    def records_routed(self) -> bool:
        """Whether requests are recorded that do not fail."""
        return self.sample_rate > 0 or self.asked_by_header
