# SPDX-License-Identifier: Apache-2.0
"""Admin ports of tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from epp.admin.port import AdminPort
from tests.support.admin_client import TOKEN, opened


@pytest.fixture
def port() -> Iterator[AdminPort]:
    """A port without a token."""
    with opened() as port:
        yield port


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def guarded(token_file) -> Iterator[AdminPort]:
    """A port with a token."""
    with opened(token_file=token_file) as port:
        yield port


@pytest.fixture
def open_port() -> Iterator[Callable[..., AdminPort]]:
    """Open ports until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(opened(*args, **options))
