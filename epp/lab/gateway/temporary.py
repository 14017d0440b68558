# SPDX-License-Identifier: Apache-2.0
"""Temporary directories, of which the error says what to do."""

import tempfile

from epp.lab.gateway.errors import NoSpaceError


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new directory; raises NoSpaceError where there is no room for one."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise NoSpaceError("a temporary directory", error) from error
