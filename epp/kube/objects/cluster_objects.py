# SPDX-License-Identifier: Apache-2.0
"""Last good versions of the objects of a cluster, from one change to the next."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from epp.framework.cluster import ObjectKind, ObjectsOfKind
from epp.framework.plugin_status import InputProblem, InputState
from epp.kube.objects.base import Object
from epp.kube.objects.decode import ObjectKey
from epp.kube.objects.files.last_good import FileObjects
from epp.kube.objects.object_in_effect import Judge, ObjectInEffect, no_faults, replaces
from epp.kube.objects.vetting import vetted

SOURCE = "cluster"
"""Stands for the cluster where problems name a file."""
_MOST_PROBLEMS = 100


class _Kind(msgspec.Struct, frozen=True):
    """Objects of one kind."""

    held: Mapping[str, ObjectInEffect] = {}
    faulty: Mapping[str, InputProblem] = {}
    """Objects of which an earlier version is in effect, as the newest has invalid values."""
    undecodable: tuple[InputProblem, ...] = ()

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        return (*self.undecodable, *self.faulty.values())


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects of all kinds that are read; `take` returns the next state."""

    kinds: Mapping[ObjectKind, _Kind] = {}
    rejected: int = 0
    """Rejected versions of objects; one rejected again for the same reason counts once."""

    def __bool__(self) -> bool:
        """Whether any kind was read."""
        return bool(self.kinds)

    @property
    def inputs(self) -> InputState:
        """Versions that are not in effect, and the number of rejected versions."""
        problems = [problem for kind in self.kinds.values() for problem in kind.problems]
        return InputState(tuple(problems[:_MOST_PROBLEMS]), {SOURCE: self.rejected} if self else {})

    def find(self, kind: ObjectKind, name: str) -> Object | None:
        """Return the version in effect of an object."""
        held = self.kinds.get(kind, _Kind()).held.get(name)
        return None if held is None else held.object

    def take(self, kinds: Iterable[ObjectsOfKind], judge: Judge = no_faults) -> "ClusterObjects":
        """Return the state after changes; an object with an invalid value only replaces one that has one too."""
        found = dict(self.kinds)
        rejected = self.rejected
        for each in kinds:
            before = found.get(each.kind, _Kind())
            now = found[each.kind] = _taken(each, before, judge)
            known = {(problem.object, problem.reason) for problem in before.problems}
            rejected += sum((problem.object, problem.reason) not in known for problem in now.problems)
        return ClusterObjects(found, rejected)

    def as_file(self, *, without: Collection[ObjectKey] = ()) -> FileObjects:
        """Return the objects as those of a file, without some."""
        kinds = {kind[:2]: objects for kind, objects in self.kinds.items()}.values()  # one that is read twice, once
        inputs = self.inputs
        return FileObjects(
            file=SOURCE,
            held=tuple(each for kind in kinds for each in kind.held.values() if not without or each.key not in without),
            problems=inputs.problems,
            rejected=self.rejected,
        )


def _taken(each: ObjectsOfKind, before: _Kind, judge: Judge) -> _Kind:
    held: dict[str, ObjectInEffect] = {}
    faulty: dict[str, InputProblem] = {}
    for name, found in each.objects.items():
        earlier = before.held.get(name)
        if earlier is not None and name not in each.changed:
            held[name] = earlier
            if name in before.faulty:
                faulty[name] = before.faulty[name]
            continue
        if not isinstance(found, Object):
            continue
        kept, doubts = vetted(found)
        reason = "; ".join(judge(kept))
        if replaces(reason, earlier):
            key = ObjectKey(each.kind.group, each.kind.kind, found.metadata.namespace, found.name)
            held[name] = ObjectInEffect(key, kept, sound=not reason, doubts=doubts)
        elif earlier is not None:
            held[name] = earlier
            faulty[name] = InputProblem(SOURCE, f"{each.kind.kind} {name}", reason, 1)
    return _Kind(held, faulty, each.problems)
