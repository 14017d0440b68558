# SPDX-License-Identifier: Apache-2.0
"""Publishers of KV events on any port of 127.0.0.1."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.kv_publisher import Publisher


@pytest.fixture
def publisher() -> Iterator[Callable[..., Publisher]]:
    """Return a function that starts one; all are closed at the end."""
    found: list[Publisher] = []

    def start(address: str = "tcp://127.0.0.1:*", **more) -> Publisher:
        found.append(Publisher(address, **more))
        return found[-1]

    yield start
    for each in found:
        each.close()
