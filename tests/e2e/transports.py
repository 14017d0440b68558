# SPDX-License-Identifier: Apache-2.0
"""Which carrier the pickers of the tests use.

Without a choice it is the default one. `EPP_TEST_TRANSPORT` chooses for a whole run; where it does not, modules with
`over_both` run over each carrier, and those with `over_asyncio` over that one.
"""

import os

import pytest

from epp.extproc.settings import ServerSettings, Transport

VARIABLE = "EPP_TEST_TRANSPORT"
OVER = "over_transports"
"""Name of the mark."""

over_both = getattr(pytest.mark, OVER)(*map(str, Transport))
"""For a module whose tests depend on the wire."""
over_asyncio = getattr(pytest.mark, OVER)(str(Transport.ASYNCIO))
"""For a module on the HTTP/2 server of this program: skipped in a run over the other carrier."""


def transports_of(mark: pytest.Mark) -> list[str]:
    """Return the carriers over which a test with this mark runs."""
    chosen = os.environ.get(VARIABLE)
    return [name for name in mark.args if chosen in {None, name}]


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
