# SPDX-License-Identifier: Apache-2.0
"""Traffic: requests with the times at which they are sent (open loop); equal seeds give equal traces."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import xxhash

from epp.lab.sim.openai_api import ChatRequest, CompletionRequest
from epp.lab.sim.plan import Plan, make_plan
from epp.lab.sim.profile import SimProfile
from perf.bench.profiles.fleets import Fleet
from perf.bench.profiles.outcome import TARGET_SECONDS, TARGET_TPOT_SECONDS, Target

MODEL = "m"
_BATCH = 64
"""Maximum requests that share a step in the computation of capacity; more only slow each other down."""
_LONGEST = 7000
"""Maximum tokens of a prompt."""
_THINK_SECONDS = (2.0, 8.0)
_TOOL_SECONDS = (3.0, 6.0)
"""Seconds between two calls of an agent, for the answer and the tool that it calls."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
ADAPTERS = tuple(f"adapter-{number}" for number in range(24))
"""Adapters of the model, most popular first."""
_SIZES = SimProfile(model=MODEL, lora_adapters=ADAPTERS, max_model_len=100_000)


class Call(NamedTuple):
    """One request."""

    at: float
    """Time at which it is sent, in seconds since the start."""
    body: bytes
    uncached_tokens: int
    """Tokens to compute by a server that has cached everything that can be shared."""
    prompt: bytes = b""
    """Body of a chat with the whole conversation, if the body omits what servers remember."""
    session: str = ""
    """Name of the session whose token the client sends; empty for a client without sessions."""

    group: str = ""
    """Kind of request, if the workload has several."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt, if the body contains them."""

    @property
    def path(self) -> str:
        """Path of the API."""
        if self.prompt_ids:
            return "/v1/completions"
        return "/v1/responses" if self.prompt else "/v1/chat/completions"


@dataclass(frozen=True)
class Trace:
    """Requests in order of time."""

    name: str
    calls: tuple[Call, ...]
    seconds: float
    slowness: float = 1.0
    """Factor on all times, including those of the servers, so that a small machine can keep up."""

    @property
    def target(self) -> Target:
        return Target(TARGET_SECONDS * self.slowness, TARGET_TPOT_SECONDS * self.slowness)

    def slowed(self, factor: float) -> "Trace":
        """Return the trace with a slower pace."""
        calls = tuple(call._replace(at=call.at * factor) for call in self.calls)
        return Trace(self.name, calls, self.seconds * factor, self.slowness * factor)

    def plan(self, number: int, block_size: int = 16) -> Plan:
        """Return the plan of a simulated server for a request; equal for all servers with this block size."""
        call = self.calls[number]
        return _plan(call.prompt or call.body, block_size, CompletionRequest if call.prompt_ids else ChatRequest)


class _Turn(NamedTuple):
    after: float
    messages: tuple[tuple[str, str], ...]
    output_tokens: int
    uncached_tokens: int
    news: int = 0
    """Number of last messages to send, for a client with a session; 0 for all."""
    model: str = MODEL
    group: str = ""
    prompt_ids: tuple[int, ...] = ()
    """Token ids to send instead of messages."""

    @property
    def prompt_tokens(self) -> float:
        return len(self.prompt_ids) or sum(len(text) for _, text in self.messages) / 4


_Dialogue = Callable[[random.Random], Iterator[_Turn]]
"""Turns of one client, with times since its first; independent requests are dialogues of one turn."""


def trace(name: str, fleet: Fleet, *, load: float, seconds: float, seed: int) -> Trace:
    """Return traffic of this kind, at a share of the fleet's capacity."""
    dialogue = ALL_WORKLOADS[name]
    rate = load * requests_per_second(fleet, name)
    generator = random.Random(f"{name} {seed}")
    calls: list[Call] = []
    at = 0.0
    per_dialogue = _sizes(name).turns
    for session in count():
        for turn in dialogue(generator):
            due = at + turn.after
            if due < seconds:
                calls.append(_call(due, turn, f"s{session}"))
        at += generator.expovariate(rate / per_dialogue)
        if at >= seconds:
            break
    return Trace(name, tuple(sorted(calls)), seconds)


def _call(due: float, turn: _Turn, session: str) -> Call:
    if turn.prompt_ids:
        body = _completion_body(turn.prompt_ids, turn.output_tokens)
        return Call(due, body, turn.uncached_tokens, group=turn.group, prompt_ids=turn.prompt_ids)
    body = _body(turn.messages, turn.output_tokens, turn.model)
    if not turn.news:
        return Call(due, body, turn.uncached_tokens, group=turn.group)
    news = _response_body(turn.messages, turn.messages[-turn.news :], turn.output_tokens)
    return Call(due, news, turn.uncached_tokens, body, session)


def requests_per_second(fleet: Fleet, name: str) -> float:
    """Return the requests per second that the fleet serves if all prefixes are cached and all servers always busy.

    A server takes `uncached / prefill rate + output * step / batch` seconds for a request, with a batch of at most
    64 that fits in its cache.
    """
    sizes = _sizes(name)
    total = 0.0
    for server in fleet.servers:
        profile = server.profile
        room = profile.block_size * profile.num_gpu_blocks / sizes.kv_tokens
        batch = max(1.0, min(_BATCH, profile.max_num_seqs, room))
        step = profile.seconds_per_output_token * (1 + profile.batch_slope * (batch - 1))
        prefill = sizes.uncached / profile.prefill_tokens_per_second
        if fleet.independent:
            total += batch / (prefill + sizes.output * profile.seconds_per_output_token)
        else:
            total += 1 / (prefill + sizes.output * step / batch)
    return total


class _Sizes(NamedTuple):
    """Means of a workload."""

    uncached: float
    output: float
    kv_tokens: float
    turns: float


@cache
def _sizes(name: str) -> _Sizes:
    generator = random.Random(f"sizes of {name}")
    dialogues = [list(ALL_WORKLOADS[name](generator)) for _ in range(200 if name in WORKLOADS else 60)]
    turns = [turn for dialogue in dialogues for turn in dialogue]
    prompts = [turn.prompt_tokens for turn in turns]
    count = len(turns)
    output = sum(turn.output_tokens for turn in turns) / count
    return _Sizes(
        uncached=sum(turn.uncached_tokens for turn in turns) / count,
        output=output,
        kv_tokens=sum(prompts) / count + output,
        turns=count / len(dialogues),
    )


def _conversation(generator: random.Random) -> Iterator[_Turn]:
    """Yield turns of a chat: one of eight system prompts, and a history that grows by question and answer."""
    messages: tuple[tuple[str, str], ...] = (("system", _text(random.Random(generator.randrange(8)), 600)),)
    after, known = 0.0, 600
    for _ in range(generator.randint(2, 6)):
        question, output = int(generator.triangular(50, 1500, 300)), int(generator.triangular(60, 400, 150))
        messages = (*messages, ("user", _text(generator, question)))
        if known + question + output > _LONGEST:
            return
        yield _Turn(after, messages, output, question + 16)
        messages = (*messages, ("assistant", _answer(messages, output)))
        known += question + output
        after += generator.uniform(*_THINK_SECONDS)


def _single(generator: random.Random) -> Iterator[_Turn]:
    """Yield one request without a shared prefix."""
    tokens = min(4000, max(60, int(generator.lognormvariate(6.5, 0.7))))
    yield _Turn(0.0, (("user", _text(generator, tokens)),), int(generator.triangular(30, 300, 100)), tokens)


def _long_or_short(generator: random.Random) -> Iterator[_Turn]:
    """Yield one request: four of five are short, the fifth is long."""
    tokens = generator.randint(2500, 6500) if generator.random() < 0.2 else generator.randint(40, 300)
    yield _Turn(0.0, (("user", _text(generator, tokens)),), int(generator.triangular(30, 300, 100)), tokens)


def _document(generator: random.Random) -> Iterator[_Turn]:
    """Yield one request: a question about a unique long text, with a long answer."""
    tokens = generator.randint(2000, 6000)
    yield _Turn(0.0, (("user", _text(generator, tokens)),), int(generator.triangular(100, 500, 300)), tokens)


def _session(generator: random.Random) -> Iterator[_Turn]:
    """Yield turns of an agent that calls tools: it sends instructions and new messages; servers store the history."""
    messages: tuple[tuple[str, str], ...] = (("system", _text(random.Random(generator.randrange(4)), 400)),)
    after, known = 0.0, 400
    for _ in range(generator.randint(6, 16)):
        result, output = int(generator.triangular(100, 1200, 300)), int(generator.triangular(30, 200, 80))
        messages = (*messages, ("user", _text(generator, result)))
        if known + result + output > _LONGEST:
            return
        yield _Turn(after, messages, output, result + 16, news=1)
        messages = (*messages, ("assistant", _answer(messages, output)))
        known += result + output
        after += generator.uniform(*_TOOL_SECONDS)


def _question_or_document(generator: random.Random) -> Iterator[_Turn]:
    """Yield one request: a short question, or (3 %) a document of 12 to 40 thousand tokens."""
    long = generator.random() < 0.03
    tokens = generator.randint(12_000, 40_000) if long else int(generator.triangular(50, 2000, 300))
    output, group = int(generator.triangular(30, 300, 100)), "long" if long else "short"
    yield _Turn(0.0, (("user", _text(generator, tokens)),), output, tokens, group=group)


def _of_an_adapter(generator: random.Random) -> Iterator[_Turn]:
    """Yield one request for an adapter, without a shared prefix; the nth adapter is n times less frequent."""
    (model,) = generator.choices(ADAPTERS, [1 / rank for rank in range(1, len(ADAPTERS) + 1)])
    tokens = min(2000, max(60, int(generator.lognormvariate(6.0, 0.6))))
    yield _Turn(
        0.0, (("user", _text(generator, tokens)),), int(generator.triangular(30, 300, 100)), tokens, model=model
    )


def _shared_prefix(generator: random.Random) -> Iterator[_Turn]:
    """Yield turns of a chat in token ids: one of 24 system prompts of 2,000 tokens, and a history that grows."""
    ids = _ids(random.Random(generator.randrange(24)), 2000)
    after, unknown = 0.0, 16
    for _ in range(generator.randint(2, 8)):
        question, output = int(generator.triangular(50, 800, 250)), int(generator.triangular(40, 250, 100))
        ids = (*ids, *_ids(generator, question))
        if len(ids) + output > _LONGEST:
            return
        yield _Turn(after, (), output, question + unknown, prompt_ids=ids)
        ids, unknown = (*ids, *_ids(generator, output)), output + 16
        after += generator.uniform(*_THINK_SECONDS)


WORKLOADS: Mapping[str, _Dialogue] = MappingProxyType(
    {"conversations": _conversation, "unshared": _single, "long-and-short": _long_or_short}
)
"""Workloads for any fleet."""
SPECIAL_WORKLOADS: Mapping[str, _Dialogue] = MappingProxyType(
    {
        "documents": _document,
        "sessions": _session,
        "rare-documents": _question_or_document,
        "adapters": _of_an_adapter,
        "shared-prefixes": _shared_prefix,
    }
)
"""Workloads for a specific ready-made profile or fleet."""
ALL_WORKLOADS: Mapping[str, _Dialogue] = MappingProxyType({**WORKLOADS, **SPECIAL_WORKLOADS})


def _text(generator: random.Random, tokens: int) -> str:
    """Return words of four bytes, each a token of a simulated server."""
    return "".join("".join(generator.choices(_LETTERS, k=3)) + " " for _ in range(tokens))


def _ids(generator: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(generator.choices(range(128_000), k=tokens))


def _answer(messages: tuple[tuple[str, str], ...], output_tokens: int) -> str:
    return "".join(_plan(_body(messages, output_tokens), 16, ChatRequest).words)


def _body(messages: Sequence[tuple[str, str]], output_tokens: int, model: str = MODEL) -> bytes:
    content = {
        "model": model,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return msgspec.json.encode(content)


def _completion_body(prompt_ids: Sequence[int], output_tokens: int) -> bytes:
    content = {
        "model": MODEL,
        "prompt": prompt_ids,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return msgspec.json.encode(content)


def _response_body(all_messages: Sequence[tuple[str, str]], news: Sequence[tuple[str, str]], tokens: int) -> bytes:
    """Return the body for the Responses API: instructions, new items, and the id of the history."""
    content = {
        "model": MODEL,
        "instructions": all_messages[0][1],
        "input": [{"role": role, "content": text} for role, text in news],
        "max_output_tokens": tokens,
        "stream": True,
    }
    if len(all_messages) > 1 + len(news):
        content["previous_response_id"] = f"resp_{xxhash.xxh3_64_hexdigest(all_messages[-len(news) - 1][1].encode())}"
    return msgspec.json.encode(content)


@cache
def _plan(body: bytes, block_size: int, kind: type[ChatRequest | CompletionRequest]) -> Plan:
    return make_plan(msgspec.json.decode(body, type=kind), msgspec.structs.replace(_SIZES, block_size=block_size), 0)
