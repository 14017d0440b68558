# SPDX-License-Identifier: Apache-2.0
"""Attacks on other clients: routing requests to a chosen server, and writing prompts to the log."""

import asyncio
import json
from typing import Any

import aiohttp

from epp.lab.gateway.settings import ClusterType
from perf.hostile.behind_envoy import behind_envoy, sim_servers
from perf.hostile.floods import FIRST, PATH
from perf.hostile.scene import Campaign
from perf.hostile.visitors import chat, request
from tests.support.exchanges import request_body, request_headers
from tests.support.http2 import http2_bytes as h2
from tests.support.http2.raw_connection import connected
from tests.support.serving import metrics_on

SECRET = "the-launch-code-is-7431"  # noqa: S105  the text to look for
CONTROL = (
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
SPELLINGS = tuple(spelled for name in CONTROL for spelled in (name, name.upper(), name.title(), name.replace("-", "_")))
"""24 spellings of control headers."""


async def steering(campaign: Campaign) -> None:
    """Control headers in 24 spellings do not affect routing, and do not reach the model server."""
    for cluster_type in (ClusterType.OVERRIDE_HOST, ClusterType.ORIGINAL_DST):
        async with (
            sim_servers(1) as others,
            sim_servers(1) as own,
            behind_envoy(campaign, servers=own, others=others, cluster_type=cluster_type) as behind,
        ):
            host, port = behind.address
            said = await behind.scene.attack("telling", "steer", host=host, port=port, address=others[0])
            campaign.judge.shows(f"spellings that were refused, {cluster_type}", said["refused"])
            campaign.judge.exactly("requests at a server that a client named", len(await _requests(others[0])), 0)
            arrived = [
                name for record in await _requests(own[0]) for name, value in record["headers"] if others[0] in value
            ]
            campaign.judge.exactly("spellings that reached the model server", sorted(set(arrived)) or "none", "none")
            campaign.judge.exactly("spellings sent and answered", said["answered"], len(SPELLINGS))
            await behind.scene.judge_rest()


async def steer(host: str, port: int, address: str) -> dict[str, Any]:
    """Send a request with each spelling."""
    statuses = [
        await _status(host, port, request(chat("steered"), headers=f"{name}: {address}\r\n")) for name in SPELLINGS
    ]
    return {"answered": len(statuses) - statuses.count(""), "refused": sum(status != "200" for status in statuses)}


async def _status(host: str, port: int, asked: bytes) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(asked)
        async with asyncio.timeout(30):
            return (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
    except (OSError, EOFError, TimeoutError):
        return ""
    finally:
        writer.transport.abort()


async def _requests(address: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/sim/requests") as answer:
        found: list[dict[str, Any]] = await answer.json()
        return found


async def prompts_in_logs(campaign: Campaign) -> None:
    """Text of prompts is never in the log or on a page, at any level and for any invalid request."""
    for level in (0, 1, 2, 4) if campaign.size == "full" else (4,):
        async with behind_envoy(campaign, f"-v={level}", "--max-request-body=64Ki") as behind:
            host, port = behind.address
            picker = behind.scene
            said = await picker.attack("telling", "tell", host=host, port=port, picker=picker.served.grpc_port)
            await metrics_on(picker.served.metrics_port)
            lines = [*picker.served.command.out, *picker.served.command.err]
            async with aiohttp.ClientSession() as http:
                for page in ("metrics", "healthz"):
                    async with http.get(f"http://127.0.0.1:{picker.served.metrics_port}/{page}") as answer:
                        lines += (await answer.text()).splitlines()
            telling = [line for line in lines if SECRET in line]
            campaign.judge.shows(f"statuses with -v={level}: {said['statuses']}", len(said["statuses"]))
            campaign.judge.exactly(f"lines with a prompt, -v={level}", len(telling), 0)
            for line in telling[:3]:
                print(line[:500], flush=True)
            await picker.judge_rest()


async def tell(host: str, port: int, picker: int) -> dict[str, Any]:
    """Send a prompt in valid and invalid requests of every kind."""
    good = chat(SECRET)
    wrong_types = json.dumps({"model": {SECRET: SECRET}, "messages": SECRET, "max_tokens": SECRET}).encode()
    bodies = [
        good,
        chat(SECRET, stream=True),
        good[:-1],
        good[: good.index(SECRET.encode()) + len(SECRET)],
        SECRET.encode(),
        wrong_types,
        b'{"model":"none","messages":[{"role":"user","content":"%b"}]}' % SECRET.encode(),
        b'{"model":"m","prompt":"%b\xff\xfe"}' % SECRET.encode(),
        b'{"model":"m","prompt":"' + SECRET.encode() * 4_000 + b'"}',
        b"[" * 3_000 + SECRET.encode(),
    ]
    statuses = []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/unknown"):
        statuses += [await _status(host, port, request(body, path=path)) for body in bodies]
    in_order = request_body(good, end=True)
    streams = [
        (h2.grpc_message(SECRET.encode()),),
        (FIRST, h2.grpc_message(b"\x12" + in_order.SerializeToString()[1:-5])),
        (FIRST, h2.grpc_message(in_order.SerializeToString()), h2.grpc_message(in_order.SerializeToString())),
        (h2.grpc_message(request_headers(x="plain").SerializeToString() + SECRET.encode()),),
    ]
    async with connected(picker) as connection:
        calls = []
        for messages in streams:
            call, opened = connection.peer.call(PATH, *messages, end=True)
            await connection.send(opened)
            calls.append(call)
        await connection.until(lambda: all(call.closed for call in calls), "all are answered")
    return {"statuses": sorted(set(statuses))}
