# SPDX-License-Identifier: Apache-2.0
"""Choice of the parser by path, and whether the body must name a model."""

import pytest

from epp.framework import Headers, Parser, RequestBody
from epp.framework.errors import NoParserError
from epp.plugins.parsers.json_parser import PassthroughParser
from epp.routing.director import ParserTable
from tests.support.apis import PARSERS


class Echo(Parser):
    """Returns the claim that matched as the model."""

    plugin_type = "echo"

    def __init__(self, *suffixes, **kwargs):
        super().__init__(**kwargs)
        self._suffixes = suffixes

    @property
    def suffixes(self):
        return self._suffixes

    def parse(self, suffix, headers, body):
        return RequestBody(model=f"{self.name}:{suffix}")


class OtherEcho(Echo):
    plugin_type = "other-echo"


def parsed(table, path, body):
    suffix, parser = table.find(path)
    return parser.parse(suffix, Headers(), body)


def matched(path, *parsers):
    return parsed(ParserTable(parsers), path, b"{}").model


@pytest.mark.parametrize(
    ("path", "claim"),
    [
        ("/v1/chat/completions", "chat/completions"),
        ("/v1/chat/completions/", "chat/completions"),
        ("/v1/completions", "completions"),
        ("/v1/completions/render", "completions/render"),
        ("completions", "completions"),
        ("/generate", "/generate"),
        ("/generate/", "/generate"),
    ],
)
def test_longest_claim_of_whole_segments_matches(path, claim):
    claims = ("completions", "chat/completions", "completions/render", "/generate")
    assert matched(path, Echo(*claims)) == f"echo:{claim}"


@pytest.mark.parametrize(
    "path",
    ["/v1/mycompletions", "/v1/completions/x", "/v1/generate", "//generate", "generate", "/", "", "/v1/Completions"],
)
def test_path_that_no_parser_claims_has_none(path):
    with pytest.raises(NoParserError) as refusal:
        matched(path, Echo("completions", "/generate"))
    assert repr(path) in str(refusal.value)


def test_whole_path_goes_before_a_suffix():
    assert matched("/generate", Echo("generate"), OtherEcho("/generate")) == "other-echo:/generate"
    assert matched("/v1/generate", Echo("generate"), OtherEcho("/generate")) == "echo:generate"


def test_fallback_gets_unclaimed_paths_regardless_of_its_position():
    parsers = (Echo(), OtherEcho("completions"))
    assert matched("/v1/completions", *parsers) == "other-echo:completions"
    assert matched("/v1/files", *parsers) == "echo:"
    assert matched("/", *parsers) == "echo:"


def test_first_of_two_parsers_with_the_same_claim_gets_it():
    assert matched("/v1/a", Echo("a"), OtherEcho("a")) == "echo:a"
    assert matched("/v1/a", Echo(), OtherEcho()) == "echo:"


def test_second_parser_of_a_type_is_skipped():
    with pytest.raises(NoParserError):
        matched("/v1/b", Echo("a", name="first"), Echo("b", name="second"))


def test_table_says_whether_the_api_names_a_model():
    table = ParserTable([*PARSERS])
    assert table.find("/v1/completions")[1].names_model
    assert not table.find("/generate")[1].names_model


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}', "m"),
        ("/v1/messages", b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}', "m"),
        ("/v1/messages/count_tokens", b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}', "m"),
        ("/inference/v1/generate", b'{"model": "m", "token_ids": [1]}', "m"),
        ("/generate", b'{"input_ids": [1]}', ""),
        ("/v1/audio/transcriptions", b"--boundary", ""),
    ],
)
def test_parsers_of_this_project_share_the_paths(path, body, model):
    assert parsed(ParserTable([*PARSERS, PassthroughParser()]), path, body).model == model
