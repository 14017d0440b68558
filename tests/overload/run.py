# SPDX-License-Identifier: Apache-2.0
"""Sends three times as many requests as the servers can serve, and says who got what: `run.py [seconds]`."""

import argparse
import asyncio
import re
import sys
import tempfile
from pathlib import Path
from time import monotonic

import aiohttp
from stage import HIGH, Stage, open_stage
from traffic import Tenant, at_rates, one_by_one

_CALIBRATION_SECONDS = 8.0
_IDLE_CLIENTS, _FULL_CLIENTS = 1, 64
_SHARES = {"high": 0.2, "calm-a": 0.6, "calm-b": 0.6, "flood": 1.6}
"""Rates by tenant, as shares of capacity: three times as much together."""
_SUCCESS = re.compile(r"^vllm:request_success_total\{.*\} (\S+)$", re.MULTILINE)
_RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", re.MULTILINE)
_OPEN = re.compile(r"^llm_d_epp_request_running\{.*\} (\S+)$", re.MULTILINE)


def jain(values: list[float]) -> float:
    """Return the fairness index of Jain: 1 for equal shares, 1 / n where one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


async def _total(urls: list[str], pattern: re.Pattern[str]) -> float:
    async with aiohttp.ClientSession() as session:
        found = 0.0
        for url in urls:
            async with session.get(url) as page:
                found += sum(float(number) for number in pattern.findall(await page.text()))
    return found


async def measure(stage: Stage, seconds: float) -> list[str]:
    """Print a table; return what is wrong."""
    pages = [f"{url}/metrics" for url in stage.servers]
    idle = await one_by_one(stage.gateway, _CALIBRATION_SECONDS, _IDLE_CLIENTS)
    full = await one_by_one(stage.gateway, _CALIBRATION_SECONDS, _FULL_CLIENTS)
    took = max(each.sent_at + each.seconds for each in full.answers) - full.answers[0].sent_at
    capacity = len(full.good()) / took
    served_before = await _total(pages, _SUCCESS)
    tenants = {name: Tenant(name, HIGH if name == "high" else "") for name in _SHARES}
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(stage.resident_bytes())
            await asyncio.sleep(1.0)

    watching, started = asyncio.create_task(watch()), monotonic()
    await at_rates(stage.gateway, seconds, [(tenants[name], share * capacity) for name, share in _SHARES.items()])
    watching.cancel()
    await asyncio.sleep(1.0)  # so that the pages show the end
    served = await _total(pages, _SUCCESS) - served_before
    at_servers, in_picker = await _total(pages, _RUNNING), await _total([stage.metrics], _OPEN)
    everybody = list(tenants.values())
    answers = [answer for tenant in everybody for answer in tenant.answers]
    good = sum(len(tenant.good()) for tenant in everybody)
    # without the end, when nothing more comes and the servers empty
    in_time = [each for each in answers if each.status == 200 and each.sent_at + each.seconds <= started + seconds]
    goodput = len(in_time) / seconds
    normal = [tenant for tenant in everybody if not tenant.objective]
    calm = [float(len(tenant.good())) for tenant in normal if tenant.name != "flood"]
    third = max(1, len(memory) // 3)
    grown = max(memory[-third:]) / max(memory[:third])

    print(f"{'tenant':10} {'sent':>6} {'200':>6} {'429':>6} {'other':>6} {'p95 s':>6} {'retry-after':>12}")
    for tenant in everybody:
        by = [each.status for each in tenant.answers]
        told = sorted(int(each.retry_after) for each in tenant.answers if each.retry_after.isdigit())
        span = f"{told[0]}..{told[-1]} s" if told else "-"
        counts = f"{by.count(200):6} {by.count(429):6} {len(by) - by.count(200) - by.count(429):6}"
        print(f"{tenant.name:10} {tenant.sent:6} {counts} {tenant.p95():6.2f} {span:>12}")
    ratio = tenants["high"].p95() / idle.p95()
    print(f"p95 of high priority: {tenants['high'].p95():.2f} s, idle {idle.p95():.2f} s: {ratio:.2f} times")
    print(f"goodput: {goodput:.1f}/s of a capacity of {capacity:.1f}/s: {100 * goodput / capacity:.0f} %")
    print(
        f"fairness between equal tenants: {jain(calm):.3f}; all of normal priority: "
        f"{jain([float(len(tenant.good())) for tenant in normal]):.3f}"
    )
    print(f"memory of the picker: {memory[0] >> 20} MiB, {max(memory) >> 20} MiB at most, {grown:.2f} times at the end")

    refused = [each for each in answers if each.status == 429]
    checks = {
        f"{sum(tenant.sent for tenant in everybody)} requests were sent, and {len(answers)} answered": len(answers)
        == sum(tenant.sent for tenant in everybody),
        "answers are neither 200 nor 429": all(each.status in {200, 429} for each in answers),
        f"servers served {served:.0f} requests, and clients got {good} answers": served == good,
        f"{at_servers:.0f} requests are left at servers, {in_picker:.0f} in the picker": at_servers == in_picker == 0,
        "requests of high priority were refused": len(tenants["high"].good()) == tenants["high"].sent,
        "requests of normal priority were never refused": bool(refused),
        "a refusal has no Retry-After": all(each.retry_after.isdigit() for each in refused),
        "equal tenants got unequal shares": jain(calm) >= 0.95,
        "a flood got more than its turn": jain([float(len(tenant.good())) for tenant in normal]) >= 0.9,
        "high priority waited as long as others": tenants["high"].p95() < min(tenant.p95() for tenant in normal),
        "goodput fell to less than 3/4 of capacity": goodput >= 0.75 * capacity,
        "memory grew by half": grown < 1.5,
    }
    return [text for text, holds in checks.items() if not holds]


async def main(seconds: float) -> int:
    """Return 0 where all is right."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage:
            wrong = await measure(stage, seconds)
    for text in wrong:
        print(f"wrong: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=300.0, help="of overload; by default five minutes")
    sys.exit(asyncio.run(main(parser.parse_args().seconds)))
