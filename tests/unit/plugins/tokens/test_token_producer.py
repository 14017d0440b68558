# SPDX-License-Identifier: Apache-2.0
"""Prompts and requests counted in tokens."""

import builtins
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Headers, ManualClock, PrefixMatch, PromptTokens, Request, RequestBody, Stability
from epp.framework.errors import ConfigurationError
from epp.framework.registry import Registry
from epp.framework.request import IN_FLIGHT_COST, PREFIX_MATCH, PROMPT_TOKENS
from epp.framework.testing import candidates
from epp.plugins.parsers.openai import OpenAIParser
from epp.plugins.token_producer import DeprecatedTokenizer, InflightLoadParameters, InflightLoadProducer, TokenProducer

tokenizers = pytest.importorskip("tokenizers")

POOL = candidates(waiting=[0])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A tokenizer that knows "hello" and " hello" as one token each, and every other byte as one."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["hello hello hello hello"], trainer)
    trained.enable_truncation(max_length=4)
    trained.enable_padding(length=4)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return str(path)


def build(parameters=None, name="token-producer", type_name="token-producer"):
    registry = Registry({})
    registry.register(TokenProducer)
    registry.register(DeprecatedTokenizer)
    return registry.build(type_name, parameters or {}, name=name, clock=ManualClock())


def counted(producer, body, key=PROMPT_TOKENS):
    request = Request("r", body)
    producer.produce(request, POOL)
    return request.get(key)


def text(prompt):
    return RequestBody(prompt=prompt.encode(), prompt_tokens=999)


@pytest.mark.parametrize(
    "parameters", [{}, {"modelName": "m"}, {"estimate": {}}, {"estimate": {"image": {}, "video": {}}}]
)
def test_parsers_estimate_is_the_default(parameters):
    assert counted(build(parameters), RequestBody(prompt=b"hello", prompt_tokens=7)) == PromptTokens(7)


def test_tokenizer_counts_what_the_file_says(file):
    producer = build({"tokenizer": {"path": file}})
    # hello, " hello", "!": and neither the file's truncation nor its padding
    assert counted(producer, text("hello hello!")) == PromptTokens(3, exact=True)
    assert counted(producer, text("hello" + " hello" * 9)) == PromptTokens(10, exact=True)
    assert counted(producer, text("\u00e9")) == PromptTokens(2, exact=True)  # two bytes


def test_request_then_has_that_many_prompt_tokens(file):
    request = Request("r", text("hello hello"))
    assert request.prompt_tokens == 999
    build({"tokenizer": {"path": file}}).produce(request, POOL)
    assert request.prompt_tokens == 2


def test_long_prompt_counts_in_proportion(file):
    producer = build({"tokenizer": {"path": file, "maxBytes": 11}})
    # "hello hello" is 11 bytes and 2 tokens; 5 + 6 * 99 = 599 bytes: 2 * 599 / 11 = 108.9
    assert counted(producer, text("hello" + " hello" * 99)) == PromptTokens(109)
    assert counted(producer, text("hello hello")) == PromptTokens(2, exact=True)


def test_character_on_the_limit_is_left_out(file):
    producer = build({"tokenizer": {"path": file, "maxBytes": 3}})
    # of three two-byte characters, the first is whole within 3 bytes: 2 tokens for 2 bytes, so 6 for 6
    assert counted(producer, text("\u00e9" * 3)) == PromptTokens(6)


@pytest.mark.parametrize(
    "body",
    [
        RequestBody(prompt=b"hello", prompt_tokens=230, media_items=1),
        RequestBody(prompt=struct.pack("<3I", 5, 6, 7), prompt_tokens=3),  # token ids
        RequestBody(prompt=b"hello\xff\xfe", prompt_tokens=2),
        RequestBody(),
    ],
)
def test_what_is_not_all_text_keeps_the_parsers_number(file, body):
    assert counted(build({"tokenizer": {"path": file}}), body) == PromptTokens(body.prompt_tokens)


def test_image_keeps_the_parsers_number_and_text_does_not(file):
    producer = build({"tokenizer": {"path": file}})

    def parsed(*parts):
        body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
        return OpenAIParser().parse("chat/completions", Headers(), json.dumps(body).encode())

    hello = {"type": "text", "text": "hello"}
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    assert counted(producer, parsed(hello)).exact
    with_image = parsed(hello, image)
    assert counted(producer, with_image) == PromptTokens(with_image.prompt_tokens)


@given(prompt=st.binary(max_size=60), limit=st.integers(1, 70))
def test_any_prompt_has_a_number(file, prompt, limit):
    body = RequestBody(prompt=prompt, prompt_tokens=-(-len(prompt) // 4))
    found = counted(build({"tokenizer": {"path": file, "maxBytes": limit}}), body)
    assert found.count >= 0
    assert not found.exact or len(prompt) <= limit


def test_named_instance_publishes_under_its_own_key():
    key = PROMPT_TOKENS.produced_by("mine")
    producer = build(name="mine")
    assert producer.writes == (key,)
    assert counted(producer, RequestBody(prompt_tokens=7), key) == PromptTokens(7)


def test_old_name_is_deprecated_and_stands_for_the_default_producer():
    producer = build(type_name="tokenizer", name="tokenizer")
    assert producer.stability is Stability.DEPRECATED
    assert producer.writes == (PROMPT_TOKENS,)


def test_file_that_is_not_there_is_named(tmp_path):
    path = str(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match=r"tokenizer file '.*none\.json' cannot be read: .*No such file"):
        build({"tokenizer": {"path": path}})


def test_file_that_is_no_tokenizer_is_named(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tokenizer file '.*broken\.json' cannot be read"):
        build({"tokenizer": {"path": str(path)}})


def test_missing_package_is_named_with_its_extra(monkeypatch, file):
    def without_tokenizers(name, *rest):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_tokenizers)
    with pytest.raises(ConfigurationError, match=r"pip install .*tokenizers"):
        build({"tokenizer": {"path": file}})


ENDPOINTS = candidates(waiting=[0, 0])


def cost(sent_to, body, *, match=None, key=PREFIX_MATCH, **parameters):
    request = Request("r", body)
    if match is not None:
        request.put(key, match)
    producer = InflightLoadProducer(InflightLoadParameters(**parameters), name="load")
    result = sent_to(ENDPOINTS, 1, 0)
    producer.pre_request(request, result)
    return request.get(IN_FLIGHT_COST)[result.primary.profile]


def held(*blocks):
    return PrefixMatch(np.array(blocks, dtype=np.int32), 10, block_tokens=64)


def test_uncached_prompt_tokens_of_the_target_are_the_cost(sent_to):
    # 1000 - 10 * 64 at slot 1; what slot 0 holds does not matter
    assert cost(sent_to, RequestBody(prompt_tokens=1000), match=held(0, 10)) == 360


def test_whole_prompt_counts_without_a_match_record(sent_to):
    assert cost(sent_to, RequestBody(prompt_tokens=1000)) == 1000


def test_match_of_a_named_producer_is_read(sent_to):
    key = PREFIX_MATCH.produced_by("fine-blocks")
    body = RequestBody(prompt_tokens=1000)
    assert cost(sent_to, body, match=held(0, 10), key=key) == 1000
    assert cost(sent_to, body, match=held(0, 10), key=key, prefix_match_info_producer_name="fine-blocks") == 360


def test_cost_is_never_negative(sent_to):
    assert cost(sent_to, RequestBody(prompt_tokens=600), match=held(0, 10)) == 0


@pytest.mark.parametrize(
    ("max_output_tokens", "parameters", "expected"),
    [
        (None, {}, 250),  # 100 + 1.5 * 100
        (None, {"output_ratio": 0.5}, 150),
        (None, {"max_estimated_output_tokens": 20}, 120),
        (10, {}, 110),
        (10, {"max_estimated_output_tokens": 20}, 110),
        (500, {}, 250),
        (-1, {}, 100),
    ],
)
def test_estimated_output_counts_when_asked_for(sent_to, max_output_tokens, parameters, expected):
    body = RequestBody(prompt_tokens=100, max_output_tokens=max_output_tokens)
    assert cost(sent_to, body, add_estimated_output_tokens=True, **parameters) == expected
