# SPDX-License-Identifier: Apache-2.0
"""Traffic, servers and configurations that are run in real time and in a replay."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from epp.lab.sim.plan import answer_tokens, tokenize
from epp.lab.sim.profile import PRESETS, SimProfile
from epp.lab.traces.making import WORKLOADS, MadeTrace, Workload
from epp.lab.traces.trace import TraceRequest

SECONDS = 52.0
"""Length of each trace."""
MODEL = SimProfile().model
_MOST_ANSWER = 300
"""Maximum tokens of an answer, so that the last answers end soon after the last request."""
_SEED = 1
_CONTEXT = 32_768
_BYTES_PER_TOKEN = 4
"""Bytes per token of a simulated server."""


@dataclass(frozen=True)
class Case:
    """One trace on one fleet with one configuration."""

    name: str
    workload: Workload
    rate: float
    servers: tuple[str, ...]
    """Presets."""
    config: str
    """Name of a ready-made configuration."""
    slowness: float = 2.0
    """Factor on the times of the presets, so that the milliseconds of gateway and sockets matter less."""
    most_running: int = 256
    """Maximum number of running requests of a server."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the trace."""
        return self.workload.block_tokens

    @property
    def profiles(self) -> Mapping[str, SimProfile]:
        """Simulated servers by name."""
        return {
            f"{preset}-{number}": msgspec.structs.replace(
                PRESETS[preset],
                name=preset,
                max_model_len=_CONTEXT,
                time_scale=self.slowness,
                max_num_seqs=min(self.most_running, PRESETS[preset].max_num_seqs),
            )
            for number, preset in enumerate(self.servers)
        }

    @cached_property
    def requests(self) -> list[TraceRequest]:
        """The trace of `epp trace make`, with limited lengths."""
        most_prompt = _CONTEXT - _MOST_ANSWER
        return [
            msgspec.structs.replace(one, output_tokens=min(one.output_tokens, _MOST_ANSWER))
            for one in MadeTrace(self.workload, self.rate, SECONDS, _SEED)
            if one.prompt_tokens <= most_prompt
        ]

    def prompts(self) -> Iterator[str]:
        """Yield the prompts: equal text for equal blocks; a turn of a session repeats the previous ones."""
        said: dict[str, str] = {}
        for number, one in enumerate(self.requests):
            blocks = "".join(_text(f"{block:x}", self.block_tokens) for block in one.blocks)
            left = one.prompt_tokens - len(blocks) // _BYTES_PER_TOKEN
            text = blocks + _text(f"r{number:x}", left)
            before = said.get(one.session, "")
            if len(before) <= len(text):
                text = before + text[len(before) :]
            if one.session:
                answer = answer_tokens(tokenize(text), one.output_tokens, model=MODEL, seed=0)
                said[one.session] = text + b"".join(answer).decode()
            yield text


def _text(word: str, tokens: int) -> str:
    size = tokens * _BYTES_PER_TOKEN
    return (f"{word:.>16}" * (size // 16 + 1))[:size]


_AGENTS = replace(WORKLOADS["agents"], most_tokens=24_000)
_BURSTS = replace(WORKLOADS["azure-conv"], burstiness=3.0)
_MIXED = ("a100", "a100", "a100-3g.20gb", "t4", "t4")
CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("conversations", WORKLOADS["azure-conv"], 3.3, ("a100",) * 4, "llm-d-default"),
        Case("code", WORKLOADS["azure-code"], 4.5, ("a100",) * 4, "adaptive"),
        Case("agents", _AGENTS, 3.0, ("a100",) * 4, "llm-d-default", slowness=1.0),
        Case("bursts", _BURSTS, 2.7, _MIXED, "adaptive"),
        Case("overload", WORKLOADS["azure-conv"], 6.6, ("a100",) * 2, "priorities", slowness=1.0, most_running=12),
    )
}
