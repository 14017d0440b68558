# SPDX-License-Identifier: Apache-2.0
"""The round trip to an endpoint, as the connection for its polls took."""

import struct

import pytest

from epp.framework.snapshot import ROUND_TRIP
from epp.pool.collectors.sources import connection
from tests.support.scripted_source import value


class Connected:
    """A socket whose kernel knows this much of it."""

    def __init__(self, info: bytes | OSError) -> None:
        self.info = info

    def getsockopt(self, *_) -> bytes:
        if isinstance(self.info, OSError):
            raise self.info
        return self.info


@pytest.mark.parametrize(
    ("info", "seconds"),
    [
        (bytes(148) + struct.pack("=I", 35_000), 0.035),
        (bytes(152), 0.5),  # the kernel does not know
        (bytes(104), 0.5),  # an old one
        (OSError("no such option"), 0.5),
    ],
)
def test_ocm_17_round_trip_is_that_of_the_kernel_or_else_the_time_of_connecting(info, seconds):
    assert connection._round_trip(Connected(info), 0.5) == seconds


async def test_ocm_17_polls_measure_the_round_trip_to_each_endpoint(store, metrics_feed, collecting, until):
    await collecting(store, metrics_feed())
    await until(lambda: value(store, ROUND_TRIP) > 0)
