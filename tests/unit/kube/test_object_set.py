# SPDX-License-Identifier: Apache-2.0
"""Objects as lists and events tell of them: whatever comes in whatever order, they are those of the server."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from structlog.testing import capture_logs

from epp.framework.plugin_status import InputProblem
from epp.kube.access import ApiError
from epp.kube.collection import Delta, ObjectSet
from epp.kube.objects.base import Object
from epp.kube.objects.decode import decode_object
from epp.kube.resources import BY_KIND
from tests.support.kube.kube_server import WIDGETS, line_of
from tests.support.kube.manifests import manifest

NAMES = st.sampled_from("abcd")
USELESS, INVALID, BREAKING = "useless", "invalid", "breaking"
COLORS = st.sampled_from(["red", "green", USELESS, INVALID, BREAKING])


def decode(document) -> str | None:
    color = document["spec"]["color"]
    if color == INVALID:
        raise ValueError("spec.color is 'invalid': write red or green")
    if color == BREAKING:
        raise RuntimeError("a decoder with a mistake in it")
    return None if color == USELESS else color


def widget(name: str, color: object, version: int = 1) -> dict:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"color": color}}


def list_of(*widgets: dict, version: int = 1, more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(version), "continue": more}, "items": widgets}).encode()


@pytest.fixture
def widgets() -> ObjectSet[str]:
    return ObjectSet(WIDGETS, decode)


def fill(widgets: ObjectSet[str], **colors: str) -> None:
    content = list_of(*(widget(name, color) for name, color in colors.items()))
    items, version, _ = widgets.read_page(content, "example.com/v2")
    widgets.replace(items, version)


class SetAndServer(RuleBasedStateMachine):
    """A server whose events reach the set late, in batches, or never; and a listener that only knows the changes."""

    def __init__(self) -> None:
        super().__init__()
        self.widgets: ObjectSet[str] = ObjectSet(WIDGETS, decode)
        self.server: dict[str, str] = {}
        self.pending: list[tuple[str, str, str]] = []
        self.revision = 1
        self.expected: dict[str, str] = {}
        self.heard: dict[str, str] = {}
        self.widgets.subscribe(self.hear)
        self.list_all()

    def hear(self, delta: Delta[str]) -> None:
        assert not delta.changed.keys() & set(delta.removed)
        assert all(name in self.heard for name in delta.removed)
        assert all(self.heard.get(name) != color for name, color in delta.changed.items())
        self.heard.update(delta.changed)
        for name in delta.removed:
            del self.heard[name]

    @rule(name=NAMES, color=COLORS)
    def put(self, name: str, color: str) -> None:
        self.pending.append(("MODIFIED" if name in self.server else "ADDED", name, color))
        self.server[name] = color

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.server:
            self.pending.append(("DELETED", name, self.server.pop(name)))

    @rule(count=st.integers(0, 6), bookmark=st.booleans())
    def deliver(self, *, count: int, bookmark: bool) -> None:
        events, self.pending = self.pending[:count], self.pending[count:]
        lines = []
        for kind, name, color in events:
            self.revision += 1
            lines.append(line_of(kind, widget(name, color, self.revision)))
            self.expect(f"ns/{name}", None if kind == "DELETED" else color)
        if bookmark:
            self.revision += 1
            lines.append(line_of("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}}))
        self.widgets.apply(lines)
        assert self.widgets.version == str(self.revision)

    @rule(trouble=st.sampled_from([line_of("ERROR", {"code": 410}), line_of("ERROR", {}), b"{", b"\xff", b"[]", b"{}"]))
    def fail(self, trouble: bytes) -> None:
        with pytest.raises(ApiError):
            self.widgets.apply([trouble])
        assert not self.widgets.version
        self.list_all()

    @rule()
    def list_all(self) -> None:
        self.revision += 1
        items, version, _ = self.widgets.read_page(
            list_of(*(widget(name, color) for name, color in self.server.items()), version=self.revision), "example/v1"
        )
        self.widgets.replace(items, version)
        self.pending.clear()
        for gone in self.expected.keys() - {f"ns/{name}" for name in self.server}:
            del self.expected[gone]
        for name, color in self.server.items():
            self.expect(f"ns/{name}", color)

    def expect(self, identity: str, color: str | None) -> None:
        if color in {None, USELESS}:
            self.expected.pop(identity, None)
        elif color not in {INVALID, BREAKING}:
            self.expected[identity] = color

    @invariant()
    def holds_the_last_good_version_of_what_is_there(self) -> None:
        assert self.widgets.objects == self.expected == self.heard

    @invariant()
    def knows_what_is_not_in_effect(self) -> None:
        if not self.pending:
            wrong = {f"Widget ns/{name}" for name, color in self.server.items() if color in {INVALID, BREAKING}}
            assert {problem.object for problem in self.widgets.problems} == wrong


TestSetAndServer = SetAndServer.TestCase


def test_problem_names_object_reason_and_whether_an_earlier_version_is_in_effect(widgets):
    fill(widgets, a="red")
    with capture_logs() as logs:
        widgets.apply([line_of("MODIFIED", widget("a", INVALID, 2)), line_of("ADDED", widget("b", INVALID, 3))])
    assert [(each["object"], each["kept"]) for each in logs] == [("Widget ns/a", True), ("Widget ns/b", False)]
    first, second = widgets.problems
    assert (first.object, first.reason) == ("Widget ns/a", "spec.color is 'invalid': write red or green")
    assert (first.kept, second.kept) == (1, 0)
    assert widgets.rejected == 2


def test_same_mistake_is_said_once(widgets):
    with capture_logs() as logs:
        for version in (2, 3):
            widgets.apply([line_of("MODIFIED", widget("a", INVALID, version))])
        fill(widgets, a=INVALID)
    assert len(logs) == widgets.rejected == 1


CAPABILITY = "spec.capabilities.computeCapability is 'nine': write a version like 9.0"


def accelerator_class(capability: str, version: int, **metadata: str) -> dict:
    spec = {"capabilities": {"computeCapability": capability}}
    made = manifest("ome.io/v1beta1", "AcceleratorClass", "gold", spec=spec)
    made["metadata"] |= {"resourceVersion": str(version), **metadata}
    return made


@pytest.fixture
def classes() -> ObjectSet[Object]:
    return ObjectSet(BY_KIND["ome.io", "AcceleratorClass"], decode_object)


def capability_of(classes: ObjectSet[Object]) -> str:
    return classes.objects["gold"].spec.capabilities.compute_capability


def test_ome_11_version_with_an_invalid_value_replaces_no_valid_one(classes):
    classes.apply([line_of("ADDED", accelerator_class("9.0", 1)), line_of("MODIFIED", accelerator_class("nine", 2))])
    assert capability_of(classes) == "9.0"
    assert classes.problems == (InputProblem("cluster", "AcceleratorClass gold", CAPABILITY, 1),)
    items, version, _ = classes.read_page(list_of(accelerator_class("nine", 2)), "ome.io/v1beta1")
    classes.replace(items, version)
    assert capability_of(classes) == "9.0"
    assert classes.rejected == 1
    classes.apply([line_of("MODIFIED", accelerator_class("10.0", 3))])
    assert (capability_of(classes), classes.problems) == ("10.0", ())


def test_version_with_an_invalid_value_counts_where_there_is_no_valid_one(classes):
    classes.apply([line_of("ADDED", accelerator_class("nine", 1))])
    assert (capability_of(classes), classes.problems) == ("nine", ())
    classes.apply([line_of("MODIFIED", accelerator_class("ten", 2))])
    assert capability_of(classes) == "ten"


def test_invalid_version_of_an_object_that_was_created_again_counts(classes):
    classes.apply([line_of("ADDED", accelerator_class("9.0", 1, uid="a"))])
    classes.apply([line_of("MODIFIED", accelerator_class("nine", 2, uid="b"))])
    assert capability_of(classes) == "nine"
    classes.apply([line_of("MODIFIED", accelerator_class("9.0", 3, uid="b"))])
    deleted = line_of("DELETED", accelerator_class("9.0", 4, uid="b"))
    classes.apply([deleted, line_of("ADDED", accelerator_class("nine", 5))])
    assert capability_of(classes) == "nine"


def test_object_that_breaks_its_decoder_is_a_problem_of_this_object_alone(widgets):
    fill(widgets, a=BREAKING, b="red")
    assert widgets.objects == {"ns/b": "red"}
    (problem,) = widgets.problems
    assert "RuntimeError: a decoder with a mistake in it" in problem.reason


def test_unreadable_list_is_an_error_that_names_the_resource(widgets):
    with pytest.raises(ApiError, match=r"the list of widgets\.example\.com is unreadable"):
        widgets.read_page(b"<html>", "example.com/v2")


def test_events_before_an_error_have_effect(widgets):
    with pytest.raises(ApiError):
        widgets.apply([line_of("ADDED", widget("a", "red", 2)), b"garbage"])
    assert widgets.objects == {"ns/a": "red"}


def test_ended_subscription_hears_nothing(widgets):
    heard: list[Delta[str]] = []
    end = widgets.subscribe(heard.append)
    fill(widgets, a="red")
    end()
    fill(widgets, a="green")
    assert [delta.changed for delta in heard] == [{"ns/a": "red"}]


def test_list_and_end_of_the_kind_are_told_although_nothing_changes(widgets):
    heard: list[Delta[str]] = []
    widgets.subscribe(heard.append)
    fill(widgets)
    widgets.clear()
    widgets.apply([line_of("BOOKMARK", {"metadata": {"resourceVersion": "9"}})])
    assert heard == [Delta(), Delta()]
