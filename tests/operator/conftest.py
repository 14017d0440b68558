# SPDX-License-Identifier: Apache-2.0
"""Programs of others, found or skipped."""

import os
import shutil
from collections.abc import Callable

import pytest

from tests.operator.operator_tools import PACKAGES
from tests.support.debian_programs import remedy


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """Return the path of a program; without it, skip, and fail where CI is set."""

    def found(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy([name], PACKAGES))
        return path

    return found
