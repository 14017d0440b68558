# SPDX-License-Identifier: Apache-2.0
"""Every pod is replaced while requests flow, as a Deployment does it: no request fails, none reaches a leaving pod."""

import time

from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.pickers import Picker, picker_in
from tests.support.load import Load, load_on
from tests.support.waiting import until

PODS = 4


async def test_pods_replaced_one_after_the_other_lose_no_request(space, tmp_path):
    async with fleet_in(space) as fleet:
        old, new = ([f"{kind}-{number}" for number in range(PODS)] for kind in ("old", "new"))
        await fleet.start(*old)
        await space.pool(ports=fleet.ports)
        async with picker_in(space, tmp_path) as picker:
            await picker.uses(*endpoints(old))
            async with load_on(picker.url) as load:
                await load.reaches(*endpoints(old))
                for leaving, joining in zip(old, new, strict=True):
                    await replace(fleet, picker, load, leaving, joining)
                await picker.uses(*endpoints(new))
                await load.reaches(*endpoints(new))


async def replace(fleet: Fleet, picker: Picker, load: Load, leaving: str, joining: str) -> None:
    """Start a pod; once it is ready, end another one, whose server goes on until it has answered."""
    await fleet.start(joining, ready=False)
    await fleet.ready(joining)
    await fleet.terminate(leaving)
    terminated = time.monotonic()
    await until(lambda: _left(picker, leaving), f"the picker has no {leaving} any more", seconds=60)
    left = time.monotonic()
    await load.answered_after(left)
    await load.ended_before(left)
    late = [answer for answer in load.after(left) if answer.server == f"{leaving}-rank-0"]
    assert not late, f"{leaving} got requests after the picker had seen that it is terminating"
    last = max((answer.started for answer in load.answers if answer.server == f"{leaving}-rank-0"), default=terminated)
    print(f"{leaving}: last request sent {last - terminated:+.3f} s after the deletion")  # noqa: T201  pytest -s
    await fleet.stop(leaving)
    await fleet.delete(leaving)


def endpoints(pods: list[str]) -> set[str]:
    return {f"{pod}-rank-0" for pod in pods}


async def _left(picker: Picker, pod: str) -> bool:
    return f"{pod}-rank-0" not in await picker.endpoints()
