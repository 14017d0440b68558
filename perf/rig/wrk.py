# SPDX-License-Identifier: Apache-2.0
"""Load from `wrk`, an independent generator: the same requests, for a time instead of a number of them."""

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from perf.rig.envoy import Envoy
from perf.rig.processes import BenchError, Child
from perf.rig.prompts import Prompts
from perf.rig.stand import Load, Outcome, OwnLoader

_SECONDS = 2
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_SCRIPT = """\
local before, after, number = {before}, {after}, {first}
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
{headers}
request = function()
  number = number + 1
  return wrk.format(nil, nil, nil, before .. string.format("%016x", number) .. after)
end
"""


class WrkLoader:
    """Runs wrk for closed loops without streamed responses, and the built-in load otherwise."""

    def __init__(self, ours: OwnLoader, program: str) -> None:
        self._ours = ours
        self._wrk = program

    async def run(self, envoy: Envoy, load: Load, first: int, headers: Mapping[str, str] | None = None) -> Outcome:
        """Send requests, numbered from `first`, and wait for the end."""
        if load.rate is not None or load.pieces:
            return await self._ours.run(envoy, load, first, headers)
        before, after = Prompts.body(load.prompt_bytes, streamed=False)
        with tempfile.TemporaryDirectory(prefix="epp-bench-") as directory:
            script = Path(directory) / "requests.lua"
            script.write_text(
                _SCRIPT.format(
                    before=_lua(before),
                    after=_lua(after),
                    first=first,
                    headers="".join(f"wrk.headers[{_lua(k)}] = {_lua(v)}\n" for k, v in (headers or {}).items()),
                )
            )
            wrk = await Child.start(
                "wrk",
                *(self._wrk, "--latency", "-t1", f"-c{load.connections}", f"-d{_SECONDS}s", f"-s{script}"),
                f"http://127.0.0.1:{envoy.port}/v1/chat/completions",
            )
            try:
                async with asyncio.timeout(10 * _SECONDS):
                    await wrk.process.wait()
                return _outcome(wrk.log)
            finally:
                await wrk.stop()


def _lua(text: str | bytes) -> str:
    """Return a Lua literal of a text of letters, spaces and JSON punctuation."""
    return f"[==[{text if isinstance(text, str) else text.decode()}]==]"


def _outcome(said: str) -> Outcome:
    counted = re.search(r"(\d+) requests in ([\d.]+)(\w+),", said)
    if counted is None or "Non-2xx" in said or int(counted[1]) == 0:
        raise BenchError(f"wrk: not all requests were answered with 200:\n{said}")
    times = {share: float(figure) * _UNITS[unit] for share, figure, unit in re.findall(r"(\d+)% +([\d.]+)(\w+)", said)}
    return Outcome(int(counted[1]), float(counted[2]) * _UNITS[counted[3]], times["50"], times["99"])
