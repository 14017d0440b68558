# SPDX-License-Identifier: Apache-2.0
"""A bench for each test."""

import pytest

from tests.support.exchanges import Bench, new_bench


@pytest.fixture
def bench() -> Bench:
    return new_bench()
