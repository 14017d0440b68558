# SPDX-License-Identifier: Apache-2.0
"""A picker in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epp.app import Picker, PickerSettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.support.transports import server_settings


@asynccontextmanager
async def running_picker(
    endpoints: str = "10.0.0.1:8000", *, address: str = "127.0.0.1:0", **settings
) -> AsyncIterator[Picker]:
    discovery = StaticDiscovery(parse_targets(endpoints))
    picker = Picker(PickerSettings(server=server_settings(address), **{"discovery": discovery, **settings}))
    await picker.start()
    try:
        yield picker
    finally:
        await picker.stop(drain_seconds=0)
