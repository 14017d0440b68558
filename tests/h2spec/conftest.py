# SPDX-License-Identifier: Apache-2.0
"""h2spec itself, where it has been built."""

import os
from pathlib import Path

import pytest

from tests.h2spec.build_h2spec import H2SPEC


@pytest.fixture(scope="session")
def h2spec() -> Path:
    """Return the program; without it, skip, and fail where CI is set."""
    place = H2SPEC.directory()
    if H2SPEC.missing(place):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(H2SPEC.remedy(place))
    return place / "h2spec"
