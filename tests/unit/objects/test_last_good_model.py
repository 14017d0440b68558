# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to files and objects, in any order: in effect is the last good version of each."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp.framework import ManualClock
from epp.framework.files import UNCHANGED_SECONDS
from epp.hardware.tagger import AcceleratorTagger, AcceleratorTaggerParameters

GRACE_SECONDS = 60.0
FILES = ("a.yaml", "b.yaml", "sub/c.json")
NAMES = ("a100", "h100", "t4")
GOOD, BAD, NAMELESS = "good", "bad", "nameless"

Content = Mapping[str, str]
"""State of each object in a file, by name; an object that is not there is removed."""
CONTENT = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([GOOD, BAD, NAMELESS]))
CONTENTS = st.fixed_dictionaries(dict.fromkeys(FILES, CONTENT))


@dataclass
class Model:
    """A file as it should be in effect."""

    held: dict[str, int] = field(default_factory=dict)
    """Price by name."""
    kept: set[str] = field(default_factory=set)
    """Names of those whose newest version is not in effect."""
    missing_since: float | None = None

    def take(self, content: Content, price: int) -> None:
        nameless = NAMELESS in content.values()
        bad = {name for name in NAMES if content.get(name) == BAD}
        good = {name for name in NAMES if content.get(name) == GOOD}
        self.kept = {name for name in self.held if name in bad or (nameless and name not in good)}
        self.held = {name: price if name in good else self.held[name] for name in good | self.kept}
        self.missing_since = None

    def break_(self) -> None:
        self.kept = set(self.held)
        self.missing_since = None

    def miss(self, now: float) -> None:
        if self.held and self.missing_since is None:
            self.missing_since = now
            self.kept = set(self.held)

    def expire(self, now: float) -> None:
        if self.missing_since is not None and now - self.missing_since >= GRACE_SECONDS:
            self.held, self.kept, self.missing_since = {}, set(), None


class FilesOfObjects(RuleBasedStateMachine):
    """Each step changes files, or lets time pass, and has the source look."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.directory = Path(self.temporary.name) / "objects"
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.models = {name: Model() for name in FILES}
        self.price = 0

    @initialize(contents=CONTENTS)
    def start(self, contents: Mapping[str, Content]) -> None:
        self._make(contents)
        parameters = AcceleratorTaggerParameters(paths=(str(self.directory),), missing_file_grace_period="1m")
        self.source = AcceleratorTagger(parameters, clock=self.clock)

    @precondition(lambda self: self.directory.exists())
    @rule(name=st.sampled_from(FILES), content=CONTENT)
    def write(self, name: str, content: Content) -> None:
        self._write(name, content)
        self._check()

    @precondition(lambda self: self.directory.exists())
    @rule(name=st.sampled_from(FILES), text=st.sampled_from(["{{ not yaml", "a: [", "\x00"]))
    def break_file(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        self.models[name].break_()
        self._check()

    @precondition(lambda self: self.directory.exists())
    @rule(name=st.sampled_from(FILES), emptied=st.booleans())
    def lose_file(self, name: str, emptied: bool) -> None:  # noqa: FBT001  Hypothesis passes it by name
        if emptied:
            (self.directory / name).write_text("\n")
        else:
            (self.directory / name).unlink(missing_ok=True)
        self.models[name].miss(self.clock.now())
        self._check()

    @precondition(lambda self: self.directory.exists())
    @rule()
    def lose_directory(self) -> None:
        shutil.rmtree(self.directory)
        for model in self.models.values():
            model.miss(self.clock.now())
        self._check()

    @precondition(lambda self: not self.directory.exists())
    @rule(contents=CONTENTS)
    def restore_directory(self, contents: Mapping[str, Content]) -> None:
        self._make(contents)
        self._check()

    @rule(seconds=st.sampled_from([1.0, GRACE_SECONDS / 2, GRACE_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._check()
        self._look_once()  # a file may be missing for too long since
        assert not self.runner.run(self.source.check())

    @invariant()
    def every_object_has_its_last_good_version(self) -> None:
        # of two objects with one name, that of the later file counts
        expected = {name: price for file in FILES for name, price in self.models[file].held.items()}
        found = {name: each.spec.cost.per_hour for name, each in self.source.inventory.classes.items()}
        assert found == expected

    @invariant()
    def objects_that_are_kept_are_told_of(self) -> None:
        kept = dict.fromkeys(FILES, 0)
        for problem in self.source.inputs.problems:
            if problem.file != str(self.directory):
                kept[str(Path(problem.file).relative_to(self.directory))] += problem.kept
        assert kept == {name: len(model.kept) for name, model in self.models.items()}

    def teardown(self) -> None:
        self.runner.close()
        self.temporary.cleanup()

    def _make(self, contents: Mapping[str, Content]) -> None:
        (self.directory / "sub").mkdir(parents=True)
        for name, content in contents.items():
            self._write(name, content)

    def _write(self, name: str, content: Content) -> None:
        self.price += 1
        documents = [_document(each, state, self.price) for each, state in content.items()]
        dump = json.dumps if name.endswith(".json") else yaml.safe_dump
        (self.directory / name).write_text(dump({"apiVersion": "v1", "kind": "List", "items": documents}))
        self.models[name].take(content, self.price)

    def _check(self) -> None:
        for _ in range(2):  # a file that has become shorter is looked at twice
            self._look_once()
            self.clock.advance(UNCHANGED_SECONDS)

    def _look_once(self) -> None:
        for model in self.models.values():
            model.expire(self.clock.now())
        self.runner.run(self.source.check())


def _document(name: str, state: str, price: int) -> dict:
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "AcceleratorClass",
        "metadata": {} if state == NAMELESS else {"name": name},
        "spec": {"cost": {"perHour": price}, "capabilities": {"memoryGB": "80GiB" if state == BAD else "80Gi"}},
    }


TestFilesOfObjects = FilesOfObjects.TestCase
