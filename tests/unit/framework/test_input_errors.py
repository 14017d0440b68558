# SPDX-License-Identifier: Apache-2.0
"""Parameters become typed structs, and what does not fit is named with its path."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from epp.framework import WAITING, ConfigurationError, FilterParameters, ManualClock, Parameters, Request, Scorer
from epp.framework.input_errors import ParameterError, mistakes_in, read_parameters
from epp.framework.limits import Count, Name, Natural, NonNegative, Port, Positive, PositiveShare, Share
from epp.framework.registry import Registry, UnknownTypeError


class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Limits(Parameters, frozen=True):
    at_most: int = 5

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"atMost is {self.at_most}; it must be 0 or more")


class Example(FilterParameters, frozen=True, kw_only=True):
    model_name: str
    limits: Limits = Limits()
    several: tuple[Limits, ...] = ()
    by_name: Mapping[str, Limits] = {}
    perhaps: Limits | None = None
    mode: Mode = Mode.FAST
    shares: tuple[float, ...] = ()
    kinds: tuple[Literal["a", "b"], ...] = ()


def test_camel_case_keys_fill_the_fields_and_the_rest_has_its_defaults():
    found = read_parameters(Example, {"modelName": "m", "limits": {"atMost": 2}, "mode": "slow", "shares": [1, 0.5]})
    assert found == Example(model_name="m", limits=Limits(at_most=2), mode=Mode.SLOW, shares=(1.0, 0.5))
    assert found.fallback_on_empty is False


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"modelNmae": "m"}, ("modelNmae",), "unknown key; did you mean 'modelName'?"),
        ({"model_name": "m"}, ("model_name",), "unknown key; did you mean 'modelName'?"),
        ({"limits": {"atLeast": 1}}, ("limits", "atLeast"), "unknown key; known are atMost"),
        ({"limits": {"x": 1}}, ("limits", "x"), "unknown key; known are atMost"),
        ({"several": [{}, {"atMots": 1}]}, ("several", 1, "atMots"), "unknown key; did you mean 'atMost'?"),
        (
            {"byName": {"a": {"atMost": 1}, "b": {"atMots": 1}}},
            ("byName", "b", "atMots"),
            "unknown key; did you mean 'atMost'?",
        ),
        ({"perhaps": {"atMots": 1}}, ("perhaps", "atMots"), "unknown key; did you mean 'atMost'?"),
        ({"modelName": 5}, ("modelName",), "modelName is 5; write it in quotes"),
        ({"limits": {"atMost": "5"}}, ("limits", "atMost"), "atMost is '5'; remove the quotes"),
        ({"limits": {"atMost": "5.5"}}, ("limits", "atMost"), "atMost is '5.5'; write a whole number"),
        ({"fallbackOnEmpty": "true"}, ("fallbackOnEmpty",), "fallbackOnEmpty is 'true'; remove the quotes"),
        ({"several": [{}, 5]}, ("several", 1), "several[1] is 5; write a mapping"),
        ({"byName": {"b": {}, "a": 5}}, ("byName", "a"), "a is 5; write a mapping"),
        ({"byName": {5: {}}}, ("byName",), "key 5 is not a string; write it in quotes"),
        ({5: "x"}, (), "key 5 is not a string; write it in quotes"),
        ({"limits": {True: 1}}, ("limits",), "key True is not a string; write it in quotes"),
        ({"mode": "quick"}, ("mode",), "'quick' is not known; use 'fast', 'slow'"),
        ({"kinds": ["a", "c"]}, ("kinds", 1), "'c' is not known; use 'a', 'b'"),
        ({"limits": {"atMost": -1}}, ("limits", "atMost"), "atMost is -1; it must be 0 or more"),
        ({"several": [{"atMost": -1}]}, ("several", 0, "atMost"), "atMost is -1; it must be 0 or more"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(data, path, message):
    wanted = {} if data.keys() & {"modelNmae", "model_name", "modelName"} else {"modelName": "m"}
    with pytest.raises(ParameterError) as caught:
        read_parameters(Example, wanted | data)
    assert (caught.value.path, str(caught.value)) == (path, message)


def test_a_required_parameter_is_missing():
    with pytest.raises(ParameterError) as caught:
        read_parameters(Example, {})
    assert (caught.value.path, str(caught.value)) == (("modelName",), "modelName is missing; add it")


def test_all_mistakes_are_found_at_any_depth():
    data = {
        "modelNmae": 5,  # the misspelling is told once, not as a missing key too; its value is judged
        "limits": {"atMost": "5", "other": 1},
        "several": [{}, {"atMost": -1}, 7],
        "byName": {"a": {"atmost": 2.5}},
        "shares": [0.5, "x", True],
        "kinds": "a",
    }
    found = mistakes_in(Example, data)
    assert [(mistake.path, str(mistake)) for mistake in found] == [
        (("modelNmae",), "unknown key; did you mean 'modelName'?"),
        (("modelNmae",), "modelNmae is 5; write it in quotes"),
        (("limits", "atMost"), "atMost is '5'; remove the quotes"),
        (("limits", "other"), "unknown key; known are atMost"),
        (("several", 1, "atMost"), "atMost is -1; it must be 0 or more"),
        (("several", 2), "several[2] is 7; write a mapping"),
        (("byName", "a", "atmost"), "unknown key; did you mean 'atMost'?"),
        (("byName", "a", "atmost"), "atmost is 2.5; write a whole number"),
        (("shares", 1), "shares[1] is 'x'; write a number"),
        (("shares", 2), "shares[2] is true; write a number"),
        (("kinds",), "kinds is 'a'; write a list"),
    ]


class Checked(Parameters, frozen=True):
    first: str = ""
    second: str = ""
    least: int = 0
    most: int = 9
    either: int | None = None
    other: int | None = None

    def __post_init__(self) -> None:
        if self.first == "bad":
            raise ValueError("first: no such name")
        if self.second == "bad":
            raise ValueError("second is 'bad'; write another")
        if self.least > self.most:
            raise ValueError(f"least is {self.least}; it must be below most")
        if self.either is not None and self.other is not None:
            raise ValueError("give one of either and other")


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({"first": "bad", "second": "bad", "least": 10}, ["first"]),
        ({"first": "bad", "least": 10, "most": "20"}, ["most"]),
        ({"least": 10, "either": 1, "other": 2}, ["least"]),
        ({"either": 1, "other": 2}, [""]),
        ({"either": 1, "other": "2"}, ["other"]),
        ({"frist": "bad"}, ["frist"]),
    ],
)
def test_first_mistake_of_a_struct_as_a_whole_is_reported_only_if_its_fields_are_right(data, problems):
    found = mistakes_in(Checked, data)
    assert [".".join(map(str, mistake.path)) for mistake in found] == problems


def test_plugin_without_parameters_takes_none():
    assert read_parameters(Parameters, {}) == Parameters()
    with pytest.raises(ParameterError, match="unknown key; there are none"):
        read_parameters(Parameters, {"any": 1})


class Picky(Scorer[Limits]):
    """Refuses more than its parameters do."""

    plugin_type = "picky"

    def __init__(self, parameters=None, *, name="", clock=None):
        super().__init__(parameters, name=name, clock=clock)
        if self.parameters.at_most == 1:
            raise ValueError("1 is too few")
        if self.parameters.at_most == 2:
            raise LookupError("no such thing")

    def score(self, request: Request, candidates):
        return candidates.values(WAITING)


@pytest.mark.parametrize(
    ("at_most", "message"), [(1, "1 is too few"), (2, "failed to initialize: LookupError: no such thing (")]
)
def test_plugin_that_cannot_be_built_is_a_configuration_error(at_most, message):
    registry = Registry({})
    registry.register(Picky)
    with pytest.raises(ConfigurationError) as caught:
        registry.build("picky", {"atMost": at_most}, name="p", clock=ManualClock())
    assert str(caught.value).startswith(message)


def test_unknown_type_is_refused_with_the_nearest_one():
    registry = Registry({})
    registry.register(Picky)
    with pytest.raises(UnknownTypeError, match=r"plugin type 'piky' is not registered; did you mean 'picky'\?"):
        registry.find("piky")


class Counted(Parameters, frozen=True):
    count: Count = 1


class Labelled(Parameters, frozen=True):
    label: Name


class Limited(Parameters, frozen=True):
    count: Count = 1
    natural: Natural = 0
    port: Port = 1
    share: Share = 0.0
    positive_share: PositiveShare = 1.0
    seconds: NonNegative | None = None
    rate: Positive = 1.0
    label: Name = "x"
    names: tuple[Name, ...] = ()
    weights: Annotated[tuple[Share, ...], Meta(min_length=1)] = (1.0,)
    inner: tuple[Limits, ...] = ()
    ports: Mapping[str, Port] = {}
    by_name: Mapping[str, Counted] = {}
    labelled: Labelled | None = None
    code: Annotated[str, Meta(max_length=3)] = ""
    pair: tuple[int, int] = (0, 0)
    few: Annotated[Mapping[str, int], Meta(max_length=1)] = {}
    dotted: Annotated[tuple[str, ...], Meta(max_length=2)] = msgspec.field(default=(), name="cost.labels")


@pytest.mark.parametrize(
    ("data", "message", "path"),
    [
        ({"count": 0}, "count is 0; it must be at least 1", ("count",)),
        ({"natural": -1}, "natural is -1; it must be 0 or more", ("natural",)),
        ({"port": 70000}, "port is 70000; it must be between 1 and 65535", ("port",)),
        ({"share": 1.5}, "share is 1.5; it must be between 0 and 1", ("share",)),
        ({"positiveShare": 0}, "positiveShare is 0; it must be above 0 and at most 1", ("positiveShare",)),
        ({"seconds": -0.5}, "seconds is -0.5; it must be 0 or more, and finite", ("seconds",)),
        ({"seconds": float("inf")}, "seconds is inf; it must be 0 or more, and finite", ("seconds",)),
        ({"rate": 0}, "rate is 0; it must be above 0, and finite", ("rate",)),
        ({"rate": float("nan")}, "rate is nan; it must be above 0, and finite", ("rate",)),
        ({"label": ""}, "label is empty; give a name, or leave it out", ("label",)),
        ({"labelled": {"label": ""}}, "label is empty; give a name", ("labelled", "label")),
        ({"names": ["a", ""]}, "names[1] is empty; give a name, or leave it out", ("names", 1)),
        ({"weights": []}, "weights is empty; list at least one entry, or leave it out", ("weights",)),
        ({"code": "abcd"}, "code has 4 characters; give at most 3", ("code",)),
        ({"pair": [1, 2, 3]}, "pair has 3 entries; give 2", ("pair",)),
        ({"few": {"a": 1, "b": 2}}, "few has 2 entries; give at most 1", ("few",)),
        ({"cost.labels": ["a", "b", "c"]}, "labels has 3 entries; give at most 2", ("cost", "labels")),
        ({"weights": [0.5, 2]}, "weights[1] is 2; it must be between 0 and 1", ("weights", 1)),
        ({"ports": {"http": 80, "https": 0}}, "https is 0; it must be between 1 and 65535", ("ports", "https")),
        ({"byName": {"x": {}, "y": {"count": 0}}}, "count is 0; it must be at least 1", ("byName", "y", "count")),
    ],
)
def test_value_out_of_its_limits_is_named_with_value_and_limits(data, message, path):
    with pytest.raises(ParameterError) as caught:
        read_parameters(Limited, data)
    assert (str(caught.value), caught.value.path) == (message, path)


def test_values_at_their_limits_are_taken():
    found = read_parameters(Limited, {"port": 65535, "share": 1, "positiveShare": 1e-9, "seconds": 0, "names": ["a"]})
    assert (found.port, found.share, found.seconds) == (65535, 1.0, 0.0)
