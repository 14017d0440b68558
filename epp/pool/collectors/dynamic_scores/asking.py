# SPDX-License-Identifier: Apache-2.0
"""The task that asks one scorer: its answers, their age, and its health."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import PageError
from epp.pool.collectors.dynamic_scores.client import Client, FetchError
from epp.pool.collectors.dynamic_scores.joining import Aggregate, JoinedScores
from epp.pool.collectors.dynamic_scores.results import Result, ResultError
from epp.pool.collectors.dynamic_scores.scorer import Asked

Health = Literal["Active", "Inactive", "Unknown"]
HEALTH: tuple[Health, ...] = ("Active", "Inactive", "Unknown")
HEALTH_SECONDS = 30.0
_VALID_INTERVALS = 3
_LONGEST_LOOK_SECONDS, _LOOKS_PER_VALIDITY = 1.0, 8

_log = structlog.get_logger()


class Asking:
    """Asks one scorer again and again; what it answered last holds for as long as it is valid."""

    def __init__(
        self, asked: Asked, clock: Clock, *, owner: str, aggregate: Aggregate, validity_seconds: float | None
    ) -> None:
        self.origin = asked
        """What is asked by the configuration, or by an object."""
        self.asked = asked
        """The same, with what the scorer itself says."""
        self.health: Health = "Unknown"
        self.failures = 0
        self.answers = 0
        self.left_out = 0
        """Results that were no scores, of the last answer."""
        self._clock = clock
        self._owner = owner
        self._aggregate = aggregate
        self._validity_seconds = validity_seconds
        self._answered_at: float | None = None
        self._results: Mapping[str, list[Result]] = {}
        self._failing = ""
        self.scores: Mapping[str, JoinedScores] = {}
        """Scores by name, expired ones included."""

    @property
    def age_seconds(self) -> float | None:
        """Time since the last answer; None for none."""
        return None if self._answered_at is None else self._clock.now() - self._answered_at

    @property
    def valid(self) -> bool:
        """Whether the last answer still holds."""
        age = self.age_seconds
        return age is not None and age < self._valid_seconds

    @property
    def _valid_seconds(self) -> float:
        return self._validity_seconds or _VALID_INTERVALS * self.asked.interval_seconds

    async def run(self, client: Client, changed: Callable[[], None]) -> None:
        """Ask until cancelled; call `changed` when other scores hold, also because they have expired."""
        if self.asked.config_url:
            await self._sync(client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_health(client))
            tasks.create_task(self._ask(client, changed))
            tasks.create_task(self._watch_validity(changed))

    async def _ask(self, client: Client, changed: Callable[[], None]) -> None:
        while True:
            if await self._ask_once(client):
                changed()
            await asyncio.sleep(self.asked.interval_seconds)

    async def _watch_validity(self, changed: Callable[[], None]) -> None:
        """Tell of scores that expire: the answer after them may take its time."""
        was_valid = False
        while True:
            valid = self.valid
            if was_valid and not valid:
                _log.warning("dynamic scores expired", plugin=self._owner, scorer=self.asked.name)
                changed()
            was_valid = valid
            await asyncio.sleep(min(_LONGEST_LOOK_SECONDS, self._valid_seconds / _LOOKS_PER_VALIDITY))

    async def _ask_once(self, client: Client) -> bool:
        """Ask once; return whether other scores hold than before."""
        was_valid = self.valid
        try:
            answer = await self.asked.ask(client, self._clock)
        except (FetchError, ResultError, PageError) as error:
            self.failures += 1
            self._say(str(error))
            return False
        self._say("")
        self.answers += 1
        self.left_out = answer.left_out
        self._answered_at = self._clock.now()
        if answer.results == self._results and was_valid:
            return False
        self._results = answer.results
        self.scores = await asyncio.to_thread(self._joined, answer.results)
        return True

    def _joined(self, results: Mapping[str, list[Result]]) -> Mapping[str, JoinedScores]:
        return {name: JoinedScores(each, self._aggregate) for name, each in results.items()}

    async def _check_health(self, client: Client) -> None:
        while not self.asked.page_url:
            if self.asked.health_url:
                try:
                    await client.get(self.asked.health_url)
                except FetchError:
                    self.health = "Inactive"
                else:
                    self.health = "Active"
            await asyncio.sleep(HEALTH_SECONDS)
            if self.asked.config_url:
                await self._sync(client)

    async def _sync(self, client: Client) -> None:
        try:
            said = await client.get(self.asked.config_url)
            self.asked = self.asked.synced(said)
        except (FetchError, ValueError) as error:
            self.failures += 1
            self._say(f"configuration of the scorer not used: {error}")

    def _say(self, problem: str) -> None:
        """Log a failure once, until the scorer answers again."""
        if problem and not self._failing:
            _log.warning("dynamic scorer failed", plugin=self._owner, scorer=self.asked.name, reason=problem)
        elif self._failing and not problem:
            _log.info("dynamic scorer answers again", plugin=self._owner, scorer=self.asked.name)
        self._failing = problem
