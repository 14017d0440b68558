# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.support import results


@pytest.fixture
def sent_to():
    """Return the scheduling result that sends a request to the candidates at these positions."""
    return results.sent_to
