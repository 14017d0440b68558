# SPDX-License-Identifier: Apache-2.0
"""The admin page in a real browser, on the demo: a decision and its bars, a dry run, and the keyboard."""

import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.commands import command

ROUNDING = 1e-6
REFUSED = "the server responded with a status of 400"
"""What the browser itself writes of a simulation that is refused."""


@pytest.fixture
async def admin() -> AsyncIterator[str]:
    """The address of a demo's page."""
    async with command("demo", "--admin-port=0", "--listen=127.0.0.1:0", "--traffic=4") as demo:
        found = re.search(r"http://\S+", await demo.says("in a browser"))
        assert found is not None
        yield found[0]
        demo.interrupt()
        await demo.end()


@pytest.fixture
async def page(browser: Browser, admin: str) -> AsyncIterator[Page]:
    """The page, which has had no error as the test ends."""
    page = await browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda line: errors.append(line.text) if line.type == "error" and REFUSED not in line.text else None
    )
    page.on("requestfailed", lambda request: errors.append(request.url))
    await page.goto(admin)
    yield page
    assert errors == []


async def test_pool_shows_endpoints_with_their_hardware(page: Page):
    rows = page.locator("#pool tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.filter(has_text="4.25")).to_contain_text("h100")
    await expect(page.locator("#state")).to_have_text("live")


async def test_idle_nodes_are_shown_with_their_price_and_what_is_not_known_of_them(page: Page):
    await expect(page.locator("#idle")).to_be_hidden()  # the demo has no nodes
    nodes = [
        {"node": "gpu-7", "accelerator": "h100", "devices": 8, "requested": 6, "free": 2, "dollarsPerHour": 8.5},
        {"node": "gpu-8", "accelerator": "t4", "devices": 1, "requested": 1, "free": 0, "dollarsPerHour": 0},
    ]
    sums = {"total": 2, "freeDevices": 2, "dollarsPerHour": 8.5, "withoutPrice": 0, "readsNodes": True}
    answer = {"nodes": nodes, **sums, "unseenPods": "pods of other namespaces are not read"}
    await page.route("**/api/idle-nodes*", lambda route: route.fulfill(json=answer))
    await page.reload()
    await expect(page.locator("#idle-note")).to_have_text(
        "2 free devices on nodes without an endpoint: $8.50 per hour; some may be in use: "
        "pods of other namespaces are not read."
    )
    await expect(page.locator("#idle-nodes tbody tr")).to_have_count(1)


async def test_decision_appears_and_its_bars_add_up_to_its_score(page: Page):
    await page.locator("#decisions li").first.wait_for()
    await page.locator("#pause").click()
    await page.locator("#decisions").focus()
    await page.keyboard.press("Home")
    await expect(page.locator("#decisions li[aria-selected=true]")).to_have_count(1)
    await page.locator(".scores .stack").first.wait_for()
    contributions = await page.locator(".scores .stack").evaluate_all(
        "stacks => stacks.map(stack => [...stack.children].map(bar => Number(bar.dataset.contribution)))"
    )
    totals = await page.locator(".scores [data-total]").evaluate_all(
        "all => all.map(each => Number(each.dataset.total))"
    )
    widths = await page.locator(".scores .stack").evaluate_all(
        "stacks => stacks.map(stack => [...stack.children].reduce((sum, bar) => sum + parseFloat(bar.style.width), 0))"
    )
    assert len(totals) == len(contributions) > 0
    for parts, total, width in zip(contributions, totals, widths, strict=True):
        assert sum(parts) == pytest.approx(total, abs=ROUNDING)
        assert width == pytest.approx(100 * total / 7, abs=0.1)  # of weights 3 + 2 + 2
    await expect(page.locator("#detail .picked")).to_have_count(1)


async def test_arrows_go_from_decision_to_decision(page: Page):
    await page.locator("#decisions li").nth(2).wait_for()
    await page.locator("#pause").click()
    await page.locator("#decisions").focus()
    chosen = []
    for key in ("Home", "ArrowDown", "j", "k"):
        await page.keyboard.press(key)
        chosen.append(await page.locator("#decisions li[aria-selected=true]").get_attribute("data-id"))
    assert chosen[1] == chosen[3]
    assert len(set(chosen)) == 3


async def test_dry_run_says_where_a_request_would_go_and_leaves_no_decision(page: Page, admin: str):
    await page.locator("#decisions li").first.wait_for()
    await page.locator("#pause").click()
    await page.locator("[name=body]").fill('{"model": "demo-8b", "messages": [{"role": "user", "content": "dry"}]}')
    await page.get_by_role("button", name="Simulate").press("Enter")
    await expect(page.locator("#simulate-note")).to_have_text(re.compile("Would go to (h100|a100-3g.20gb|t4)."))
    await expect(page.locator("#detail")).to_contain_text("Simulated:")
    async with aiohttp.ClientSession() as http, http.get(f"{admin}api/decisions?limit=1000") as answer:
        kinds = {each["kind"] for each in (await answer.json())["decisions"]}
    assert "simulated" not in kinds


async def test_filter_narrows_the_pool_and_a_summary_says_how_many_there_are(page: Page):
    await expect(page.locator("#pool-note")).to_contain_text("3 endpoints, 3 used")
    await page.locator("#pool-filter").fill("H100")
    await expect(page.locator("#pool tbody tr")).to_have_count(1)
    await expect(page.locator("#pool-note")).to_contain_text('1 with "H100"')


async def test_page_of_a_telephone_is_not_wider_than_its_screen(page: Page):
    await page.locator("#pool tbody tr").first.wait_for()
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_current_configuration_is_one_click_away_and_what_is_wrong_with_it_is_said_in_red(page: Page):
    await page.locator("#config-now").click()
    config = page.locator("[name=config]")
    await expect(config).to_have_value(re.compile("kind: EndpointPickerConfig"))
    await config.fill((await config.input_value()).replace("kind: EndpointPickerConfig", "kind: Nothing"))
    await page.get_by_role("button", name="Simulate").click()
    await expect(page.locator("#simulate-note")).to_have_class("bad")
    await expect(page.locator("#detail")).to_be_empty()


async def test_dry_run_of_what_is_no_json_says_so(page: Page):
    await page.locator("[name=body]").fill("no JSON")
    await page.get_by_role("button", name="Simulate").click()
    await expect(page.locator("#simulate-note")).to_contain_text("JSON")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_from_its_background(browser: Browser, admin: str, scheme: str):
    page = await browser.new_page(color_scheme=scheme)
    await page.goto(admin)
    lightness = (
        "name => { const [r, g, b] = getComputedStyle(document.body)[name].match(/[0-9.]+/g).map(Number);"
        " return 0.2126 * r + 0.7152 * g + 0.0722 * b; }"
    )
    text, back = [await page.evaluate(lightness, name) for name in ("color", "backgroundColor")]
    assert (text < back) == (scheme == "light")
    assert abs(text - back) > 150
