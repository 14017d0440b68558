# SPDX-License-Identifier: Apache-2.0
"""What hostile gateways do at full size: the memory of the picker stays small, and other connections are answered.

Times depend on the machine, so only what no busy one can spoil is judged; `-s` shows the figures.
"""

import sys

import pytest
from attacked import Watched, under_attack
from attacks import attack
from probing import Waits, probed
from transports import over_asyncio

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), over_asyncio]

GATHERED_MIB = 256
"""--max-gathered-bytes by default."""


def show(what: str, picker: Watched, waits: Waits, outcome: dict[str, object]) -> None:
    print(f"{what}: {outcome}; memory +{picker.grown_mib:.0f} MiB at most; a request beside it {waits}")  # noqa: T201  with -s


async def test_fifty_thousand_resets_three_times_over():
    async with under_attack() as picker:
        for _ in range(3):
            async with probed(picker.port) as waits:
                outcome = await attack(picker.port, "rapid_resets")
            show("50,000 resets", picker, waits, outcome)
            assert waits.requests
        assert picker.grown_mib < 24


async def test_forty_large_bodies_held_open():
    async with under_attack(most_mib=GATHERED_MIB * 3 / 2) as picker:
        async with probed(picker.port) as waits:
            outcome = await attack(picker.port, "held_bodies", 40, 31)
        show("40 bodies of 31 MiB", picker, waits, outcome)
        assert outcome["held"] * 31 <= GATHERED_MIB
        assert outcome["held"] + outcome["refused"] == 40
        assert outcome["held"] > 0


async def test_five_thousand_streams_at_a_byte_every_two_seconds():
    async with under_attack() as picker:
        async with probed(picker.port) as waits:
            outcome = await attack(picker.port, "slow_writers", 5_000, 12)
        show("5,000 slow writers", picker, waits, outcome)
        assert outcome["open"] == 5_000
        assert picker.grown_mib < 32
