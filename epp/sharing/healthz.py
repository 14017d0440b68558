# SPDX-License-Identifier: Apache-2.0
"""The state of all processes of a picker for `/healthz`: sums, and the differences of workers from the main process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from epp.sharing.channel import Channel, ChannelClosedError
from epp.telemetry.endpoints import MAX_ROWS

CALL = "health"
"""Call that a worker answers with its own state."""
_ANSWER_SECONDS = 2.0
_OWN = ("reason", "config", "failing_tasks", "shadow_profiles_disabled", "degraded_plugins", "not_in_effect")
"""Parts of a worker's state that are shown if they differ from those of the main process."""
_ALERTS, _ALERT_COUNT = "quota_alerts", "quotas_almost_used_up"
_QUEUED, _BUDGETS, _LOST_LINES, _TRACING = "queued", "budgets_used_up", "lost_log_lines", "tracing"

State = Mapping[str, Any]
"""An answer of `/healthz`."""


class Processes(NamedTuple):
    serving: int = 0
    starting: int = 0
    replaced: int = 0
    """Number of processes that ended or hung since the start."""


async def ask(channels: Iterable[Channel], kind: str, most_seconds: float) -> dict[Channel, Any]:
    """Return the answer of each worker to a call; None if it does not answer in time."""

    async def answer(channel: Channel) -> Any:
        try:
            return await channel.call(kind, most_seconds=most_seconds)
        except ChannelClosedError:
            return None

    asked = tuple(channels)
    return dict(zip(asked, await asyncio.gather(*map(answer, asked)), strict=True))


class WorkersHealth:
    """Last states of the workers, so that `/healthz` waits for none of them."""

    def __init__(self, processes: Callable[[], Processes]) -> None:
        """Prepare; `processes` may be called in any thread."""
        self._processes = processes
        self._answers: Mapping[int, State | None] = {}

    async def refresh(self, channels: Mapping[int, Channel]) -> None:
        answers = await ask(channels.values(), CALL, _ANSWER_SECONDS)
        self._answers = {number: answers[channel] for number, channel in channels.items()}

    def with_workers(self, own: State) -> dict[str, Any]:
        """Return the state of the picker, given that of the main process; may be called in any thread."""
        return merged(own, self._answers, self._processes())


def merged(own: State, answers: Mapping[int, State | None], processes: Processes) -> dict[str, Any]:
    """Return the state of a main process and its workers as one; the answer of a silent worker is None.

    The picker is ready only while a worker serves.
    """
    known = {number: state for number, state in answers.items() if state is not None}
    states = (own, *known.values())
    silent = sorted(answers.keys() - known.keys())
    differing = _differing(own, known)
    found = {
        **own,
        **_sums(states),
        "workers": {
            **processes._asdict(),
            **({"silent": silent} if silent else {}),
            **({"differing": differing} if differing else {}),
        },
    }
    if own.get("ready") and not processes.serving:
        found |= {"ready": False, "reason": "no worker process serves"}
    return found


def _differing(own: State, known: Mapping[int, State]) -> Sequence[State]:
    """Return the parts that differ from the main process; workers with the same parts are listed together."""
    groups: list[tuple[State, list[int]]] = []
    for number, state in sorted(known.items()):
        parts = {part: value for part in _OWN if (value := _difference(state.get(part), own.get(part)))}
        alike = next((numbers for others, numbers in groups if others == parts), None)
        if alike is not None:
            alike.append(number)
        elif parts:
            groups.append((parts, [number]))
    return [{"workers": numbers, **parts} for parts, numbers in groups[:MAX_ROWS]]


def _difference(value: object, own: object) -> object:
    """Return the part of a value that the main process does not have, limited in length; None if there is none."""
    if isinstance(value, (list, tuple)):
        same_values = own if isinstance(own, (list, tuple)) else ()
        return [each for each in value if each not in same_values][:MAX_ROWS]
    if isinstance(value, Mapping):
        same = own.items() if isinstance(own, Mapping) else ()
        return dict([pair for pair in value.items() if pair not in same][:MAX_ROWS])
    return None if value == own else value


def _sums(states: Sequence[State]) -> State:
    """Return the parts that are sums over the processes."""
    found: dict[str, Any] = {_LOST_LINES: sum(state.get(_LOST_LINES, 0) for state in states)}
    if queues := [state[_QUEUED] for state in states if _QUEUED in state]:
        longest = max(queue["longest_seconds"] for queue in queues)
        found[_QUEUED] = {**_added(queues), "longest_seconds": longest}
    budgets = [state[_BUDGETS] for state in states if _BUDGETS in state]
    if names := dict.fromkeys(name for each in budgets for name in each):
        found[_BUDGETS] = {name: _added([each[name] for each in budgets if name in each]) for name in names}
    if tracing := [state[_TRACING] for state in states if _TRACING in state]:
        failing = next((each["failing"] for each in tracing if each["failing"]), None)
        found[_TRACING] = {**_added(tracing), "failing": failing}
    alerts = {(each["tenant"], each["limit"]): each for state in states for each in state.get(_ALERTS, ())}
    if alerts:
        count = max(len(alerts), *(state.get(_ALERT_COUNT, 0) for state in states))
        found |= {_ALERTS: list(alerts.values())[:MAX_ROWS], _ALERT_COUNT: count}
    return found


def _added(parts: Sequence[State]) -> dict[str, Any]:
    """Return the parts as one, with the sums of their numbers."""
    found: dict[str, Any] = {}
    for name, value in ((name, value) for part in parts for name, value in part.items()):
        found[name] = found[name] + value if name in found and isinstance(value, (int, float)) else value
    return found
