# SPDX-License-Identifier: Apache-2.0
"""The metrics port and the admin port of a real picker under very many, slow and unknown clients."""

import contextlib
import socket
from functools import partial

import aiohttp

from tests.support.half_open_scrapes import REQUEST
from tests.support.serving import PLAIN, Served, serving
from tests.support.waiting import until

TOKEN = "a-token-of-this-test-alone"  # noqa: S105  of this test alone
CUT = "llm_d_epp_page_connections_cut_total"


async def cut(served: Served, port: str, cause: str) -> float:
    found = (await served.metrics()).get(CUT, {})
    return found.get(frozenset({f"port={port}", f"cause={cause}"}), 0.0)


async def ask(port: int, path: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}", headers=headers) as page:
        return page.status, await page.text()


async def test_limits_of_both_ports_are_reached_and_counted(sim):
    flags = ("--metrics-max-connections=20", "--metrics-request-timeout=3s", "--admin-max-connections=2")
    async with serving(sim, PLAIN, "--admin-port=0", *flags) as served, contextlib.AsyncExitStack() as stack:
        admin = int(served.admin.rpartition(":")[2])
        for port, most in ((served.metrics_port, 20), (admin, 2)):
            for _ in range(3 * most):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.send(REQUEST[:10])
        assert (await ask(admin, "/api/quota"))[0] == 200

        async def is_counted(port: str, cause: str) -> bool:
            return await cut(served, port, cause) > 0

        for port in ("metrics", "admin"):
            await until(partial(is_counted, port, "made_room"), f"connections have made room on the {port} port")
        await until(partial(is_counted, "metrics", "request_timeout"), "those that sent half a request were cut off")


async def test_metrics_are_for_holders_of_the_token_and_probes_learn_the_bare_state(sim, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    async with serving(sim, PLAIN, f"--metrics-token-file={file}") as served:
        port = served.metrics_port
        status, refusal = await ask(port, "/metrics")
        assert (status, "--metrics-token-file" in refusal) == (401, True)
        assert (await ask(port, "/metrics", "another-token-than-that"))[0] == 401
        assert await ask(port, "/healthz") == (200, '{"ready": true}\n')
        assert "endpoints" in (await ask(port, "/healthz", TOKEN))[1]
        status, page = await ask(port, "/metrics", TOKEN)
        assert status == 200
        assert 'cause="unauthorized",port="metrics"} 2.0' in page
        file.write_text("another-token-than-that\n")
        assert (await ask(port, "/metrics", TOKEN))[0] == 401
        assert (await ask(port, "/metrics", "another-token-than-that"))[0] == 200
