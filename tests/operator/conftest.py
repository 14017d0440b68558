# SPDX-License-Identifier: Apache-2.0
"""Programs of others, found or skipped."""

import os
import shutil
from collections.abc import AsyncIterator, Callable

import pytest
from playwright.async_api import Browser, async_playwright

from tests.operator.operator_tools import PACKAGES
from tests.support.debian_programs import remedy

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags for a browser that asks nobody but us."""


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """Return the path of a program; without it, skip, and fail where CI is set."""

    def found(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy([name], PACKAGES))
        return path

    return found


@pytest.fixture
async def browser(program: Callable[[str], str]) -> AsyncIterator[Browser]:
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=program("chromium"), args=list(QUIET))
        yield browser
        await browser.close()
