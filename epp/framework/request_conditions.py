# SPDX-License-Identifier: Apache-2.0
"""Conditions on a request, as in preference lists: `{promptTokens: "<2048"}`, `{modelSize: "8B..70B"}`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from epp.framework.limits import Name
from epp.framework.plugin import Parameters
from epp.framework.request import Headers, Request

NumberTest: TypeAlias = Callable[[float], bool]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = r"([+-]?\d+(?:\.\d+)?)\s*([KMBTkmbt]?)"
_COMPARISON = re.compile(rf"\s*(<=|>=|!=|<|>|=)?\s*{_NUMBER}\s*")
_RANGE = re.compile(rf"\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s*")
_TIMES = re.compile(r"\s*([01]?\d|2[0-3]):([0-5]\d)\s*\.\.\s*([01]?\d|2[0-3]|24(?=:00)):([0-5]\d)\s*")
_MINUTES_OF_DAY = 24 * 60
_WORD = re.compile(r"\s*(!=|=)?\s*(\S+)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "=": lambda value, bound: value == bound,
    "!=": lambda value, bound: value != bound,
}
_SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([mbt])(?![a-z0-9])")
_PRECISION_IN_NAME = re.compile(r"(?<![a-z0-9])(fp32|fp16|bf16|fp8|int8|fp4|int4)(?![a-z0-9])")


class HeaderCondition(Parameters, frozen=True):
    """A header of the request."""

    name: str
    """Header name, case-insensitive."""
    value: str | None = None
    """Required value, or, after `!=`, a value to exclude; without it, any value."""


class Condition(Parameters, frozen=True):
    """A condition on the request: it holds if all given keys hold.

    Numbers are written with `<`, `<=`, `>`, `>=`, `=` or `!=` before them (`=` if none), or as a range `a..b`, both
    ends included. They may end in K, M, B or T for thousands, millions, billions and trillions. A condition on an
    unknown value does not hold.
    """

    model_size: str | int | None = None
    """Number of the model's parameters: from `modelSizes`, else from the model's name (`llama-3-8b`: 8B)."""
    prompt_tokens: str | int | None = None
    """Tokens of the prompt."""
    request_size: str | int | None = None
    """Another name for `promptTokens`."""
    max_output_tokens: str | int | None = None
    """The request's limit of output tokens."""
    total_tokens: str | int | None = None
    """Tokens of the prompt, plus the request's limit of output tokens if it has one."""
    precision: str | None = None
    """Precision of the model, optionally after `=` or `!=`: from `modelPrecisions`, else from the model's name
    (`llama-3-8b-fp8`: fp8)."""
    priority: str | int | None = None
    """Priority of the request."""
    streaming: bool | None = None
    """Whether the response is streamed."""
    lora: bool | str | None = None
    """Name of a LoRA adapter; or whether the model is a LoRA adapter known to any endpoint."""
    header: HeaderCondition | None = None
    """A header of the request."""
    time_of_day: str | None = None
    """Time of the request in UTC: `08:00..18:00`, end excluded; `22:00..06:00` spans midnight."""

    def __post_init__(self) -> None:
        if all(getattr(self, field) is None for field in self.__struct_fields__):
            raise ValueError(f"a condition is empty; give one of {', '.join(self.__struct_encode_fields__)}")
        compile_condition(self)


HIGHEST_PREFERENCE = 100.0


class Preference(Parameters, frozen=True):
    """Preference for one class, and the requests to which it applies."""

    accelerator_class: Name = msgspec.field(name="class")
    """Name of an AcceleratorClass; endpoints without a class are matched by their model, such as `h100`."""
    score: Annotated[float, Meta(ge=0, le=HIGHEST_PREFERENCE)] = HIGHEST_PREFERENCE
    """Score of the class, out of 100."""
    conditions: tuple[Condition, ...] = ()
    """Conditions on the request; without any, the preference always applies."""
    match: Literal["all", "any"] = "all"
    """Whether all conditions must hold, or at least one of them."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a request that conditions test; None if unknown."""

    model: str
    model_size: float | None
    prompt_tokens: int
    max_output_tokens: int | None
    precision: str
    priority: int
    streaming: bool
    adapters: frozenset[str]
    """Adapters known to any endpoint."""
    headers: Headers
    minute_of_day: int
    """Minutes since midnight UTC."""


Test: TypeAlias = Callable[[Facts], bool]


def facts_of(
    request: Request,
    sizes: Mapping[str, float],
    precisions: Mapping[str, str],
    adapters: frozenset[str],
    utc_seconds: float,
) -> Facts:
    """Return the facts about the request; `sizes` and `precisions` of models take precedence over their names."""
    model = request.model
    return Facts(
        model=model,
        model_size=sizes[model] if model in sizes else size_in_name(model),
        prompt_tokens=request.prompt_tokens,
        max_output_tokens=request.body.max_output_tokens,
        precision=precisions[model] if model in precisions else precision_in_name(model),
        priority=request.priority,
        streaming=request.body.streaming,
        adapters=adapters,
        headers=request.headers,
        minute_of_day=int(utc_seconds // 60) % _MINUTES_OF_DAY,
    )


def size_in_name(model: str) -> float | None:
    """Return the number of parameters in a model's name: 8e9 for `llama-3-8b`, 56e9 for `mixtral-8x7b`; else None."""
    found = _SIZE_IN_NAME.search(model.lower())
    if found is None:
        return None
    return int(found[1] or 1) * _number(found[2], found[3])


def precision_in_name(model: str) -> str:
    """Return the precision in a model's name; empty if there is none."""
    found = _PRECISION_IN_NAME.search(model.lower())
    return found[1] if found else ""


def parse_size(text: str | int) -> float:
    """Return a number such as `70B`; raises ValueError."""
    found = re.fullmatch(_NUMBER, str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is not a number; write one such as 2048, 2K, 70B or 1.5T")
    return _number(found[1], found[2])


def parse_number_test(text: str | int) -> NumberTest:
    """Return the test for `<30B`, `>=2048`, `!=0`, `1K..4K` or a plain number; raises ValueError."""
    written = str(text)
    if found := _RANGE.fullmatch(written):
        low, high = _number(found[1], found[2]), _number(found[3], found[4])
        if low > high:
            raise ValueError(f"{written!r} is an empty range; write the lower number first")
        return lambda value: low <= value <= high
    if found := _COMPARISON.fullmatch(written):
        holds, bound = _OPERATORS[found[1] or "="], _number(found[2], found[3])
        return lambda value: holds(value, bound)
    raise ValueError(f"{written!r} is not a condition on a number; write one such as '<2048', '>=70B' or '1K..4K'")


def compile_condition(condition: Condition) -> Test:
    """Return the test for a whole condition; raises a ValueError that names the key."""
    names = dict(zip(condition.__struct_fields__, condition.__struct_encode_fields__, strict=True))
    numbers = {field: text for field in _NUMBERS if (text := getattr(condition, field)) is not None}
    tests = [_number_test(names[field], text, _NUMBERS[field]) for field, text in numbers.items()]
    if condition.precision is not None:
        tests.append(_precision_test(condition.precision))
    if condition.streaming is not None:
        tests.append(lambda facts: facts.streaming is condition.streaming)
    if condition.lora is not None:
        tests.append(_lora_test(condition.lora))
    if condition.header is not None:
        tests.append(_header_test(condition.header))
    if condition.time_of_day is not None:
        tests.append(_time_test(condition.time_of_day))
    return lambda facts: all(test(facts) for test in tests)


def _time_test(text: str) -> Test:
    found = _TIMES.fullmatch(text)
    if found is None:
        raise ValueError(f"timeOfDay is {text!r}; write a range such as 08:00..18:00, in UTC")
    hour, minute, last_hour, last_minute = map(int, found.groups())
    start, end = hour * 60 + minute, last_hour * 60 + last_minute
    if start == end:
        raise ValueError(f"timeOfDay {text!r} is an empty range; leave it out for the whole day")
    if start < end:
        return lambda facts: start <= facts.minute_of_day < end
    return lambda facts: facts.minute_of_day >= start or facts.minute_of_day < end


def _number(digits: str, unit: str) -> float:
    return float(Fraction(digits) * _UNITS[unit.upper()])


_NUMBERS: Mapping[str, Callable[[Facts], float | None]] = {
    "model_size": lambda facts: facts.model_size,
    "prompt_tokens": lambda facts: facts.prompt_tokens,
    "request_size": lambda facts: facts.prompt_tokens,
    "max_output_tokens": lambda facts: facts.max_output_tokens,
    "total_tokens": lambda facts: facts.prompt_tokens + (facts.max_output_tokens or 0),
    "priority": lambda facts: facts.priority,
}


def _number_test(name: str, text: str | int, fact: Callable[[Facts], float | None]) -> Test:
    try:
        holds = parse_number_test(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return lambda facts: (value := fact(facts)) is not None and holds(value)


def _precision_test(text: str) -> Test:
    found = _WORD.fullmatch(text)
    if found is None:
        raise ValueError(f"precision: {text!r} is not a condition on a name; write one such as 'fp8' or '!=fp8'")
    word, same = found[2].lower(), found[1] != "!="
    return lambda facts: facts.precision != "" and (facts.precision == word) is same


def _lora_test(lora: bool | str) -> Test:  # noqa: FBT001  as a condition is written
    if isinstance(lora, str):
        return lambda facts: facts.model == lora
    return lambda facts: (facts.model in facts.adapters) is lora


def _header_test(header: HeaderCondition) -> Test:
    name, wanted = header.name.lower(), header.value
    if wanted is None:
        return lambda facts: name in facts.headers
    if wanted.startswith("!="):
        return lambda facts: name in facts.headers and facts.headers[name] != wanted[2:]
    return lambda facts: facts.headers.get(name) == wanted.removeprefix("=")
