# SPDX-License-Identifier: Apache-2.0
"""Policies from files of objects, followed while they change."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import structlog

from epp.framework.clock import Clock
from epp.framework.plugin_status import InputProblem, InputState
from epp.kube.objects.followed import Change, FollowedObjects
from epp.kube.objects.inference import POLICY_KINDS, rewrite_faults
from epp.kube.objects.last_good import FileObjects
from epp.routing.director.policies import PoolPolicies
from epp.routing.policies.build import BuiltPolicies, PoolIdentity, build_policies

_GRACE_PERIOD = "5m"
"""Time for which a file that is missing keeps its objects: as for accelerator objects, by default."""

_log = structlog.get_logger()


class _Next(NamedTuple):
    """Versions of the objects, and the policies by them."""

    change: Change
    built: BuiltPolicies
    problems: tuple[str, ...]


class PolicyFiles:
    """InferenceObjective and InferenceModelRewrite objects in files and directories; other kinds are ignored.

    An invalid version of a file or of an object changes nothing: the previous version stays in effect. Without one, the
    object is skipped; of a rewrite, only the rules with invalid targets.
    """

    name = "--objects"
    """Flag with the paths; in log lines, metrics and `/healthz`, it is in the place of a plugin."""

    def __init__(self, paths: Sequence[str], clock: Clock, *, pool_name: str = "") -> None:
        """Read the files for the first time; raises ConfigurationError for a path that does not exist.

        Objects for pools of other names are left out, unless the name is empty.
        """
        self._clock = clock
        self._pool = PoolIdentity(pool_name)
        self._source = FollowedObjects(
            paths,
            owner=self.name,
            setting=self.name,
            grace_period=_GRACE_PERIOD,
            kinds=POLICY_KINDS,
            validate=rewrite_faults,
        )
        self._policies = PoolPolicies()
        if (following := self._read()) is not None:
            self._apply(following)

    @property
    def policies(self) -> PoolPolicies:
        """Policies in effect."""
        return self._policies

    @property
    def inputs(self) -> InputState:
        """Files, and the versions of them that are not in effect."""
        state = self._source.inputs
        return InputState((*state.problems, *_idle_rules(self._source.present.files)), state.rejected)

    async def follow(self, use: Callable[[PoolPolicies], None]) -> None:
        """Call `use` with new policies until cancelled."""
        async for _ in self._source.changes():
            if await self.look():
                use(self._policies)

    async def look(self) -> bool:
        """Read the files; return whether any of them, or its objects in effect, changed."""
        following = await asyncio.to_thread(self._read)
        if following is None:
            return False
        self._apply(following)
        return True

    def _read(self) -> _Next | None:
        """Return what follows; None if nothing changed. Runs in a thread, so it changes no state."""
        change = self._source.read(self._clock.now())
        if change is None:
            return None
        files = change.files
        built = build_policies((held.object for file in files for held in file.held), self._pool)
        problems = [problem for file in files for problem in (*map(str, file.problems), *file.notes)]
        return _Next(change, built, (*problems, *built.warnings))

    def _apply(self, following: _Next) -> None:
        change, built, problems = following
        self._policies = built.policies
        self._source.apply(change)
        self._source.tell(problems)
        _log.info(
            "policies updated",
            objectives=built.objectives,
            rewrites=built.rewrites,
            for_other_pools=built.other_pools,
            problems=len(problems),
        )


def _idle_rules(files: Sequence[FileObjects]) -> Iterator[InputProblem]:
    """Yield the rewrites in effect that have rules without effect."""
    for file in files:
        for held in file.held:
            if not held.sound:
                reason = "; ".join(rewrite_faults(held.object))
                yield InputProblem(file.file, f"{held.key.kind} {held.object.id}", reason)
