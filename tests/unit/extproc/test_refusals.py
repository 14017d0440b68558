# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  one row for each error
"""All errors that a client can get, in the formats of OpenAI, Anthropic and SGLang, and as plain text."""

import gzip
import json
import re
from dataclasses import dataclass, field, replace

import pytest

from epp.extproc.wire import ImmediateResponse
from tests.support.exchanges import BODY, in_modes, new_bench, request_body, request_headers, subset

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
FAILED = "the gateway failed on this request: retry, and if it fails again, contact the operator of this service"
NO_ROOM = (
    "no model server can take this request now: all are too busy, or none meets its requirements; retry later, "
    "or ask for less"
)
UNMET = (
    "no model server meets the requirements of this request (hardware, price, labels), and a retry does not help: "
    "ask for less"
)


def config(*plugins: str, profile: str = "queue-scorer", parsers: str = "openai-parser") -> str:
    names = ", ".join(f"{{type: {plugin}}}" for plugin in ("queue-scorer", parsers, *plugins))
    return f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{names}]
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: {profile}}}]}}]
requestHandler: {{parsers: [{{pluginRef: {parsers}}}]}}
dataLayer: {{injectDefaults: false}}
"""


HARDWARE = config("accelerator-selection-producer, parameters: {allowRequestOverrides: true, requestOverrides: strict}")


@dataclass(frozen=True)
class Case:
    """A request, and the members of OpenAI's error object that answer it."""

    name: str
    body: bytes
    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    reason: str | None = None
    wait: str = ""
    config: str | None = None
    path: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)
    endpoints: tuple[str, ...] | None = None
    """The gateway's subset hint."""


def invalid(name: str, body: bytes, problem: str, **more) -> Case:
    return Case(name, body, 400, f"the request body is not valid JSON: {problem}", **more)


def member(name: str, body: bytes, param: str | None, problem: str, *, code: str = "invalid_type", path=CHAT):
    subject = "the JSON of the request body" if param is None else f'"{param}"'
    return Case(name, body, 400, f"{subject} {problem}", param=param, code=code, path=path)


MISSING = "missing_required_parameter"
NO_MODEL = 'the request names no model: add "model" to the JSON body, with the name of a served model'
CASES = [
    invalid("truncated", b'{"model":', "it ends at line 1, column 10 (byte 9), before it is complete"),
    invalid("not an object", b"model=m", "at line 1, column 1 (byte 0), a JSON value was expected"),
    invalid("third line", b'{\n"model": "m",\n  x}', "at line 3, column 3 (byte 18), a key in double quotes was expected"),
    invalid("comma too many", b'{"model":"m",}', "at line 1, column 14 (byte 13), a key was expected after the comma"),
    invalid("no comma", b'{"a":1 "b":2}', "at line 1, column 8 (byte 7), expected ',' or '}'"),
    invalid("two values", BODY + b" {}", "at line 1, column 62 (byte 61), nothing was expected after the JSON value"),
    invalid("line break in a string", b'{"model":"a\nb"}', "at line 1, column 12 (byte 11), a control character was found: escape it inside a string, a line break as \\n"),
    invalid("not UTF-8", b'{"model":"\xff"}', "line 1, column 11 (byte 10) is not UTF-8"),
    invalid("half a pair", b'{"model":"\\ud83d"}', "at line 1, column 11 (byte 10), half of a surrogate pair was found, or it ends before it is complete"),
    invalid("truncated after a pair", b'{"model":"\\ud83d\\ude00', "it ends at line 1, column 23 (byte 22), before it is complete"),
    invalid("too deep", b'{"x":' + b"[" * 9_000, "it is nested too deeply"),
    invalid("form", b"model=m", "at line 1, column 1 (byte 0), a JSON value was expected; its content-type is 'application/x-www-form-urlencoded': send JSON, with content-type: application/json", headers={"content-type": "application/x-www-form-urlencoded"}),
    Case("compressed", gzip.compress(BODY), 400, "the request body has content-encoding 'gzip', which is not supported: send it as plain JSON, uncompressed", headers={"content-encoding": "gzip"}),
    Case("no body", b"", 400, "the request has no body: send a JSON object"),
    member("array", b"[]", None, "must be an object, not an array"),
    Case("no model", b'{"messages":[{"role":"user","content":"x"}]}', 400, NO_MODEL, param="model", code=MISSING),
    Case("null model", BODY.replace(b'"m"', b"null"), 400, NO_MODEL, param="model", code=MISSING),
    Case("empty model", BODY.replace(b'"m"', b'""'), 400, NO_MODEL, param="model", code=MISSING),
    member("model is a number", BODY.replace(b'"m"', b"7"), "model", "must be a string, not an integer"),
    member("no messages", b'{"model":"m"}', "messages", "is missing or empty: send at least one message", code=MISSING),
    member("content is a number", b'{"model":"m","messages":[{"role":"user","content":1}]}', "messages[0].content", "must be a string or an array, not an integer"),
    member("limit is a string", BODY[:-1] + b',"max_tokens":"9"}', "max_tokens", "must be a number, not a string"),
    member("no prompt", b'{"model":"m"}', "prompt", "is missing or empty: send a text or token ids", code=MISSING, path="/v1/completions"),
    member("negative token", b'{"model":"m","prompt":[-1]}', "prompt[0]", "must be an integer of at least 0", code="invalid_value", path="/v1/completions"),
    member("mixed prompt", b'{"model":"m","prompt":["a",1]}', "prompt", "mixes types: send a string, an array of strings, an array of token ids or an array of arrays of token ids", path="/v1/completions"),
    Case("too large", b"x" * 201, 413, "the request body is larger than 200 bytes, the limit here: send a smaller one"),
    Case("unknown path", BODY, 400, "path '/v1/nope' belongs to no API that is served here: correct the URL", path="/v1/nope", code="unknown_url", config=config()),
    Case("unreadable header", BODY, 400, "request cannot be admitted: header 'x-epp-accelerator-min-memory': 'lots' is not a quantity: write 0 or more, optionally with k, M, G, T, Ki, Mi, Gi or Ti", headers={"x-epp-accelerator-min-memory": "lots"}, config=HARDWARE),
    Case("unknown header", BODY, 400, "request cannot be admitted: header 'x-epp-accelerator-vendr' is not known; did you mean 'x-epp-accelerator-vendor'?", headers={"x-epp-accelerator-vendr": "nvidia"}, config=HARDWARE),
    Case("unknown profile", BODY, 400, "header 'EPP-Profile' names profile 'cheap\\x1b[0m', which does not exist; profiles are default", headers={"epp-profile": "cheap\x1b[0m"}, config=config("header-profile-handler")),
    Case("none in the subset", BODY, 503, "no model server is available for this request: retry later", type="server_error", reason="rejected-no-endpoints", wait="5", endpoints=("10.9.9.9",)),
    Case("screened", BODY, 503, "no model server takes requests like this one now: retry later", type="server_error", reason="rejected-no-endpoints", wait="5", config=config("'tests.support.refusing:ScreensAll'")),
    Case("saturated", BODY, 429, NO_ROOM, type="rate_limit_error", code="rate_limit_exceeded", reason="rejected-saturated", config=config("'tests.support.refusing:KeepsNone', name: kept", profile="kept")),
    Case("shed", BODY, 429, "request cannot be admitted: all model servers are busy, and this request is of low priority: retry later", type="rate_limit_error", code="rate_limit_exceeded", reason="rejected-saturated", wait="1", config=config("'tests.support.refusing:Sheds'")),
    Case("constraint", BODY, 429, UNMET, type="rate_limit_error", reason="rejected-constraint", config=config("label-selector-filter, name: gold, parameters: {matchLabels: {tier: gold}}", profile="gold")),
    Case("constraint, as not found", BODY, 404, UNMET, type="not_found_error", reason="rejected-constraint", config=config("label-selector-filter, name: gold, parameters: {matchLabels: {tier: gold}}", profile="gold").replace("{name: default,", "{name: default, constraintStatus: 404,")),
    Case("busy", BODY, 429, "all model servers that can take this request are busy: retry later", type="rate_limit_error", code="rate_limit_exceeded", reason="rejected-saturated", wait="1", config=config("endpoint-attribute-filter, name: full, parameters: {attribute: in_flight, algorithm: {threshold: {operator: LessThan, value: 0}}}", profile="full")),
    Case("plugin fails", BODY, 500, FAILED, type="server_error", config=config("'tests.support.refusing:BrokenFilter', name: broken", profile="broken")),
    Case("program fails", BODY, 500, FAILED, type="server_error", config=config("'tests.support.refusing:BrokenProfiles'")),
]  # fmt: skip


def refused(case: Case, path: str | None = None, **options) -> ImmediateResponse:
    limit = 200 if case.name == "too large" else 100_000
    session = new_bench(case.config).session(max_body_bytes=limit, **options)
    first = request_headers(path or case.path, **(JSON | case.headers))
    if case.endpoints is not None:
        first.metadata_context.CopyFrom(subset(*case.endpoints))
    (reply,) = session.receive(first) or session.receive(request_body(case.body))
    assert session.done
    return reply.immediate_response


def fields(answer: ImmediateResponse) -> dict[str, str]:
    return {option.header.key: option.header.raw_value.decode() for option in answer.headers.set_headers}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_error_of_openai_does_not_speak_of_this_program(case):
    answer = refused(case)
    assert answer.status.code == case.status
    assert not re.search(
        r"[Pp]lugin|[Pp]arser|picker|Error:|candidate|keeps|broken|kept|KeyError|bodyMap|msgspec|`",
        answer.body.decode(),
    )
    assert json.loads(answer.body) == {
        "error": {"message": case.message, "type": case.type, "param": case.param, "code": case.code}
    }
    expected = {"content-type": "application/json"} | ({"retry-after": case.wait} if case.wait else {})
    assert fields(answer) == expected | ({"x-llm-d-request-dropped-reason": case.reason} if case.reason else {})


CODES = {
    400: "BadRequest", 404: "NotFound", 413: "PayloadTooLarge",
    429: "ResourceExhausted", 500: "Internal", 503: "ServiceUnavailable",
}  # fmt: skip
LLM_D = {
    NO_MODEL: "model not found in request body",
    NO_ROOM: "no endpoints available for the given request",
    UNMET: "no endpoints available for the given request",
    "all model servers that can take this request are busy: retry later": "no endpoints available for the given request",
    "no model server is available for this request: retry later": (
        "failed to find endpoint candidates for serving the request"
    ),
    "no model server takes requests like this one now: retry later": "screeners eliminated all endpoint candidates",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plain_error_is_the_sentence_of_llm_d(case):
    answer = refused(case, plain_errors=True)
    assert answer.status.code == case.status
    message = LLM_D.get(case.message, case.message)
    assert answer.body.decode() == f"inference error: {CODES[case.status]} - {message}"
    assert fields(answer)["content-type"] == "text/plain; charset=utf-8"


ANTHROPIC_TYPES = {
    400: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
    500: "api_error", 503: "overloaded_error",
}  # fmt: skip
FOR_ANTHROPIC = ["truncated", "no body", "model is a number", "too large", "shed", "plugin fails", "none in the subset"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens?beta=true", "/team/v1/messages/"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in FOR_ANTHROPIC], ids=lambda case: case.name)
def test_error_of_anthropic_names_the_request(case, path):
    if case.config is not None:
        case = replace(case, config=case.config.replace("openai-parser", "anthropic-parser"))
    answer = refused(case, path)
    assert answer.status.code == case.status
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": ANTHROPIC_TYPES[case.status], "message": case.message},
        "request_id": "r-1",
    }


def test_error_of_sglang_is_a_message_alone():
    case = Case("", b'{"input_ids":"text"}', 400, "", path="/generate", config=config(parsers="sglanghttp-parser"))
    assert json.loads(refused(case).body) == {"error": {"message": '"input_ids" must be an array, not a string'}}


def test_error_at_any_other_path_is_the_bare_message():
    answer = refused(Case("", b"x", 503, "", path="/other", endpoints=("10.9.9.9",)))
    assert answer.body == b"no model server is available for this request: retry later"
    assert fields(answer)["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("path", ["/chat/completions", "/openai/v1/files", "/v1/chat/completions/?stream=1"])
def test_error_of_openai_at_paths_of_gateways_that_rewrite_them(path):
    shown = json.loads(refused(Case("", BODY, 503, "", endpoints=("10.9.9.9",)), path).body)
    assert shown["error"]["type"] == "server_error"


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
def test_other_methods_without_a_body_are_for_the_model_server_to_answer(method):
    (reply,) = new_bench().session().receive(request_headers(end=True, **{":method": method}))
    assert reply.WhichOneof("response") == "request_headers"


def test_post_without_a_body_is_refused_where_a_body_is_needed_and_nowhere_else():
    (refusal,) = new_bench().session().receive(request_headers(end=True))
    assert refusal.immediate_response.status.code == 400
    assert b"the request has no body" in refusal.immediate_response.body
    (reply,) = new_bench().session().receive(request_headers("/reset_prefix_cache", end=True))
    assert reply.WhichOneof("response") == "request_headers"


@pytest.mark.parametrize("mode", ["NONE", "STREAMED"])
def test_body_that_is_not_shown_is_not_missing(mode):
    (reply,) = new_bench().session().receive(in_modes(request_headers(), mode))
    assert reply.WhichOneof("response") == "request_headers"


def test_hostile_values_are_cut_and_cannot_paint_a_terminal():
    name = "\x1b]0;owned\x07" + "x" * 60_000
    case = replace(next(case for case in CASES if case.name == "unknown profile"), headers={"epp-profile": name})
    said = json.loads(refused(case).body)["error"]["message"]
    assert said.isprintable()
    assert len(said) < 200
    many = {f"x-epp-accelerator-{number}": "y" * 400 for number in range(500)}
    case = replace(case, config=HARDWARE, headers=many)
    assert len(refused(case).body) < 6_000


def test_refusal_before_routing_is_recorded_once():
    bench, broken = new_bench(), new_bench(config("'tests.support.refusing:BrokenProfiles'"))
    for session, last in (
        (bench.session(max_body_bytes=9), request_body(BODY)),
        (bench.session(), request_body(BODY[:9], end=False)),
        (broken.session(), request_body(BODY)),
    ):
        session.receive(request_headers(), last)
        session.close()
    assert bench.endings.refusals == ["BodyTooLargeError", "ClientGoneError"]
    assert broken.endings.refusals == ["PluginFailedError"]
