# SPDX-License-Identifier: Apache-2.0
"""A token producer that runs, and requests as the director shows them to it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from epp.framework import PROMPT_TOKENS, ManualClock, Request
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from epp.pool.tokens.producer import DeprecatedTokenizer, TokenProducer
from tests.support.apis import parse
from tests.support.render_server import render_server

POOL = candidates(waiting=[0])


def build(parameters=None, name="token-producer", type_name="token-producer"):
    registry = Registry({})
    registry.register(TokenProducer)
    registry.register(DeprecatedTokenizer)
    return registry.build(type_name, parameters or {}, name=name, clock=ManualClock())


class Asked:
    """A token producer, and requests to it."""

    def __init__(self, producer: TokenProducer) -> None:
        self.producer = producer

    async def tokens(self, body, suffix="chat/completions", **more):
        """Return the tokens that a request is scheduled with, and whether it was held."""
        content = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
        request = Request("r", parse(suffix, content), path=f"/v1/{suffix}", content=content, **more)
        self.producer.produce(request, POOL)
        held = self.producer.admit(request, POOL)
        if held is not None:
            await held
            self.producer.produce(request, POOL)
        return request.get(PROMPT_TOKENS), held is not None

    async def ids(self, body, suffix="chat/completions", **more):
        found, _ = await self.tokens(body, suffix, **more)
        return None if found.ids is None else found.ids.tolist()

    @property
    def source(self):
        return self.producer._fetches.source  # noqa: SLF001  there is no other way to it

    @property
    def results(self):
        found = [each for each in self.producer.samples if each.metric.name == "prompt_token_lookups"]
        return {each.labels[0]: each.value for each in found if each.value}

    def value(self, name):
        (found,) = [each.value for each in self.producer.samples if each.metric.name == name]
        return found


@asynccontextmanager
async def asked(parameters):
    """Run a producer with these parameters."""
    producer = build(parameters)
    task = asyncio.create_task(producer.follow(lambda _: None))
    await asyncio.sleep(0)
    try:
        yield Asked(producer)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def chat(*texts, **more):
    roles = ("user", "assistant") * len(texts)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)], **more}


@pytest.fixture
async def render():
    async with render_server() as server:
        yield server
