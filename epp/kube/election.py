# SPDX-License-Identifier: Apache-2.0
"""The part of one replica in the election of a leader: renews a lease, or waits for it."""

import asyncio
import random
from collections.abc import Callable

import structlog

from epp.framework.clock import Clock
from epp.kube.access import KubeApi
from epp.kube.errors import ApiError, ApiUnreachableError
from epp.kube.lease import Lease, LeaseSettings, Step
from epp.kube.resources import LEASES

_JITTER = (0.8, 1.2)
_FORBIDDEN = frozenset({401, 403})

_log = structlog.get_logger()


class LeaderElection:
    """Of all replicas with the same lease, at most one leads while each of them reaches the API server.

    llm-d-router ends its process when it has not renewed the lease in time. This one stays up and becomes a follower
    when another replica leads: its streams go on, and it knows the endpoints when it is its turn again.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: LeaseSettings,
        identity: str,
        *,
        clock: Clock,
        generator: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.problem = ""
        """Why the lease could not be read or written in the last attempt; empty where it could."""
        self._api = api
        self._lease = Lease(settings, identity, clock)
        self._clock = clock
        self._generator = generator or random.Random()  # noqa: S311  spreads requests, guards nothing
        self._collection = LEASES.path("v1", settings.namespace)
        self._answer_seconds = settings.seconds / 3
        self._on_change: Callable[[bool], None] | None = None
        self._leads = False
        self._holder_told = ""
        self._failing_since: float | None = None
        self._is_failure_told = False

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self._leads

    @property
    def holder(self) -> str:
        """The replica that leads, as last seen; empty for none."""
        return self._lease.holder

    @property
    def since(self) -> str:
        """When it took the lease, by its clock."""
        return self._lease.since

    @property
    def identity(self) -> str:
        """This replica."""
        return self._lease.identity

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Renew the lease or wait for it, until cancelled; call `on_change` with whether this replica leads."""
        self._on_change = on_change
        while True:
            await self._attempt()
            await asyncio.sleep(self.settings.retry_seconds * self._generator.uniform(*_JITTER))

    def step_down(self) -> None:
        """Lead no more; the lease is still held. Call `release` next, once `run` was cancelled."""
        self._on_change = None
        self._leads = False

    async def release(self) -> None:
        """Release the lease if this replica holds it, so that another one can take it at once."""
        self._lease.resign()
        try:
            async with asyncio.timeout(self._answer_seconds):
                wrote = await self._send_all()
        except (ApiError, ApiUnreachableError, TimeoutError, ValueError) as error:
            _log.warning("lease not released, and so held until it expires", lease=self._title, reason=_words(error))
        else:
            if wrote:
                _log.info("lease released", lease=self._title)

    @property
    def _title(self) -> str:
        return f"{self.settings.namespace}/{self.settings.name}"

    async def _attempt(self) -> None:
        self._lease.begin()
        try:
            await self._send_all()
        except (ApiError, ApiUnreachableError, TimeoutError, ValueError) as error:
            self._failed(error)
        else:
            if self._is_failure_told:
                _log.info("lease readable again", lease=self._title)
            self.problem, self._failing_since, self._is_failure_told = "", None, False
        self._publish()

    async def _send_all(self) -> bool:
        """Send the requests of an attempt; return whether the lease was written. Raises what ends it early."""
        wrote = False
        while (step := self._lease.step()) is not None:
            content = None if step is Step.READ else self._lease.content()
            path = self._collection if step is Step.CREATE else f"{self._collection}/{self.settings.name}"
            try:
                async with asyncio.timeout(self._answer_seconds):
                    answer = await self._api.request(step.value, path, body=content)
            except ApiError as error:
                if not self._lease.refused(step, error.status):
                    raise
            else:
                self._lease.answered(step, answer)
                wrote = step is not Step.READ
        return wrote

    def _failed(self, error: Exception) -> None:
        """Say once why the lease cannot be kept: at once where rights are missing, else when others may take it."""
        self.problem = _words(error)
        now = self._clock.now()
        if self._failing_since is None:
            self._failing_since = now
        if self._is_failure_told:
            return
        if isinstance(error, ApiError) and error.status in _FORBIDDEN:
            remedy = f"allow get, create and update of leases.{LEASES.group} in {self.settings.namespace}"
            _log.error("no access to the lease", lease=self._title, reason=self.problem, remedy=remedy)
        elif now - self._failing_since >= self.settings.seconds - self._answer_seconds:
            _log.warning("lease not readable", lease=self._title, reason=self.problem, leader=self._leads)
        else:
            return
        self._is_failure_told = True

    def _publish(self) -> None:
        if self._on_change is None:
            return
        if self.holder not in {self._holder_told, self.identity} and not self._leads:
            _log.info("another replica leads", lease=self._title, holder=self.holder, since=self.since)
        self._holder_told = self.holder or self._holder_told
        if self._lease.is_leader == self._leads:
            return
        self._leads = self._lease.is_leader
        if self._leads:
            _log.info("this replica leads", lease=self._title, identity=self.identity)
        else:
            _log.warning("this replica leads no more", lease=self._title, holder=self.holder)
        self._on_change(self._leads)


def _words(error: Exception) -> str:
    return str(error) or "no answer in time"
