# SPDX-License-Identifier: Apache-2.0
"""Conditions on a request."""

import msgspec
import pytest

from epp.framework import Headers, Request, RequestBody
from epp.framework.request_conditions import (
    Condition,
    compile_condition,
    facts_of,
    parse_number_test,
    precision_in_name,
    size_in_name,
)

GOLD = [("X-Tier", "gold")]


def holds(condition, *, adapters=(), headers=(), priority=0, at=0, **body):
    request = Request("r", RequestBody(**body), headers=Headers(headers), priority=priority)
    test = compile_condition(msgspec.convert(condition, Condition))
    return test(facts_of(request, {}, {}, frozenset(adapters), at))


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("<2048", 2047, 2048), ("<=2K", 2000, 2001), (">70B", 70e9 + 1, 70e9), (">= 1.5T", 1.5e12, 1.4e12),
        ("=4", 4, 5), ("4", 4, 5), (4, 4, 5), (-1, -1, 1), ("!=0", 1, 0),
        ("1k..4K", 4000, 4001), ("1k .. 4K", 1000, 999), ("-5..-1", -5, 0),
    ],
)  # fmt: skip
def test_operators_ranges_and_units(text, yes, no):
    assert parse_number_test(text)(yes)
    assert not parse_number_test(text)(no)


@pytest.mark.parametrize("text", ["", "<", "70Q", "4..1", "=<5", "1..", "a..b", "==5"])
def test_what_is_no_condition_on_a_number_is_refused(text):
    with pytest.raises(ValueError, match=r"write (one such as|the lower number first)"):
        parse_number_test(text)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("llama-3-8b", 8e9), ("meta-llama/Llama-3.2-1B-Instruct", 1e9), ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("Qwen/Qwen3-30B-A3B", 30e9), ("Qwen2.5-7B-Instruct-1M", 7e9), ("deepseek-r1-distill-qwen-1.5b", 1.5e9),
        ("smollm_135m_chat", 135e6), ("kimi-1t", 1e12), ("gpt-4o", None), ("", None), ("v100bis", None),
    ],
)  # fmt: skip
def test_size_out_of_a_models_name(name, size):
    assert size_in_name(name) == size


@pytest.mark.parametrize(
    ("name", "precision"), [("Llama-3-8B-FP8", "fp8"), ("m-int4-awq", "int4"), ("m", ""), ("mfp8x", "")]
)
def test_precision_out_of_a_models_name(name, precision):
    assert precision_in_name(name) == precision


TOKENS = {"prompt_tokens": 1000, "max_output_tokens": 500}
SHORT_STREAM = {"promptTokens": "<2048", "streaming": True}


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ({"promptTokens": "<=1000"}, TOKENS, {"prompt_tokens": 1001}),
        ({"requestSize": "1000"}, TOKENS, {"prompt_tokens": 1001}),
        ({"maxOutputTokens": ">=500"}, TOKENS, {"max_output_tokens": 499}),
        ({"totalTokens": "1500"}, TOKENS, {"prompt_tokens": 1000}),
        ({"totalTokens": "1000"}, {"prompt_tokens": 1000}, TOKENS),
        # what is not known fulfils no condition
        ({"maxOutputTokens": "<500"}, {"max_output_tokens": 1}, {}),
        ({"maxOutputTokens": "!=500"}, {"max_output_tokens": 1}, {}),
        ({"modelSize": "!=8B"}, {"model": "llama-70b"}, {"model": "nameless"}),
        ({"precision": "!=fp8"}, {"model": "llama-int4"}, {"model": "nameless"}),
        # several keys all have to hold
        (SHORT_STREAM, {"prompt_tokens": 10, "streaming": True}, {"prompt_tokens": 10}),
        (SHORT_STREAM, {"prompt_tokens": 10, "streaming": True}, {"prompt_tokens": 5000, "streaming": True}),
        ({"priority": ">=0"}, {}, {"priority": -1}),
        ({"streaming": False}, {}, {"streaming": True}),
        ({"precision": "FP8"}, {"model": "llama-8b-fp8"}, {"model": "llama-8b-int8"}),
        ({"precision": "!=fp8"}, {"model": "llama-8b-int8"}, {"model": "llama-8b-fp8"}),
        # an adapter by name, or any
        ({"lora": "sql"}, {"model": "sql"}, {"model": "base"}),
        ({"lora": True}, {"model": "sql", "adapters": ["sql"]}, {"model": "base", "adapters": ["sql"]}),
        ({"lora": False}, {"model": "base", "adapters": ["sql"]}, {"model": "sql", "adapters": ["sql"]}),
        # a header that is present, equal or other
        ({"header": {"name": "x-tier"}}, {"headers": GOLD}, {}),
        ({"header": {"name": "X-Tier", "value": "=gold"}}, {"headers": GOLD}, {}),
        ({"header": {"name": "x-tier", "value": "!=silver"}}, {"headers": GOLD}, {}),
    ],
)
def test_condition_holds_for_requests_that_it_describes_only(condition, yes, no):
    assert holds(condition, **yes)
    assert not holds(condition, **no)


@pytest.mark.parametrize(
    ("times", "yes", "no"),
    [
        ("08:00..18:00", ["08:00", "17:59"], ["07:59", "18:00"]),
        ("22:00..06:00", ["22:00", "00:00", "05:59"], ["06:00", "21:59"]),
        ("12:30 .. 24:00", ["12:30", "23:59"], ["00:00"]),
    ],
)
def test_ome_6_time_of_day_is_that_of_greenwich(times, yes, no):
    def at(text: str) -> float:
        hours, minutes = map(int, text.split(":"))
        return 20_000 * 86_400 + hours * 3600 + minutes * 60 + 59.9  # some day in 2024

    assert all(holds({"timeOfDay": times}, at=at(text)) for text in yes)
    assert not any(holds({"timeOfDay": times}, at=at(text)) for text in no)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({}, "a condition is empty; give one of modelSize"),
        ({"timeOfDay": "9..17"}, "timeOfDay is '9..17'; write a range such as 08:00..18:00"),
        ({"timeOfDay": "08:00..24:30"}, "write a range such as"),
        ({"timeOfDay": "08:00..8:00"}, "is an empty range; leave it out for the whole day"),
        ({"totalTokens": "many"}, "totalTokens: 'many' is not a condition on a number"),
        ({"precision": "fp8 or so"}, "precision: 'fp8 or so' is not a condition on a name"),
    ],
)
def test_conditions_that_say_nothing_are_refused(condition, words):
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(condition, Condition)
