# SPDX-License-Identifier: Apache-2.0
"""Which carrier the pickers of the tests use: `EPP_TEST_TRANSPORT` names it; otherwise it is the default one."""

import os

import pytest

from epp.extproc.settings import ServerSettings, Transport

VARIABLE = "EPP_TEST_TRANSPORT"

over_asyncio = pytest.mark.skipif(
    os.environ.get(VARIABLE) not in {None, Transport.ASYNCIO}, reason="is on the HTTP/2 server of this program"
)


def transport_flags() -> tuple[str, ...]:
    """Return what a command needs to be told."""
    chosen = os.environ.get(VARIABLE)
    return () if chosen is None else (f"--transport={chosen}",)


def server_settings(address: str = "unix:unset", *, secure: bool = False) -> ServerSettings:
    """Return the settings of a picker within the test's own process."""
    chosen = os.environ.get(VARIABLE)
    return (
        ServerSettings(address, secure=secure)
        if chosen is None
        else ServerSettings(address, secure=secure, transport=Transport(chosen))
    )
