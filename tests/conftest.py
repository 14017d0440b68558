# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

import pytest
from hypothesis import settings
from transports import OVER, VARIABLE

settings.register_profile("untimed", deadline=None)  # no test passes or fails on a time
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{OVER}(*names): runs over these carriers, or the one of {VARIABLE}")
