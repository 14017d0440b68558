# SPDX-License-Identifier: Apache-2.0
"""A metrics page."""

import pytest

from tests.support.metric_page import Page


@pytest.fixture
def page() -> Page:
    return Page()
