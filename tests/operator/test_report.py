# SPDX-License-Identifier: Apache-2.0
"""The report of replays in a real browser: its plots are drawn, in light, dark and print, and it loads nothing."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from epp.lab.replay.comparison import replay_report
from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.jobs import replay
from epp.lab.replay.summary import Targets
from tests.unit.replay.conftest import ListTrace, config, fleet, requests


@pytest.fixture
def report(tmp_path: Path) -> Path:
    names = ("adaptive", "random")
    trace = ListTrace(requests(5.0, 20.0))
    outcomes = [replay(config(name), fleet("h100", "t4"), trace, ReplayOptions()) for name in names]
    path = tmp_path / "report.html"
    path.write_text(replay_report("trace", names, outcomes, [["requests", "100", "100"]], Targets()))
    return path


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("light", "print")])
async def test_report_is_drawn(browser: Browser, report: Path, scheme, media):
    page = await browser.new_page(color_scheme=scheme)
    problems: list[str] = []
    page.on("console", lambda line: problems.append(line.text))
    page.on("request", lambda request: problems.append(request.url) if request.url != report.as_uri() else None)
    await page.emulate_media(media=media)
    await page.goto(report.as_uri())
    await expect(page.locator("h1")).to_have_text("Replay of trace")
    lines = page.locator("svg polyline.line")
    for each in await lines.all():
        box = await each.bounding_box()
        assert box is not None
        assert box["width"] > 50
    assert await lines.count() >= 10
    back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = await page.locator("svg text").first.evaluate("node => getComputedStyle(node).fill")
    assert (sum_of(back) < sum_of(ink)) == (scheme == "dark")
    assert problems == []


def sum_of(colour: str) -> int:
    """Return the sum of the parts of a colour such as `rgb(1, 2, 3)`."""
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
