# SPDX-License-Identifier: Apache-2.0
"""Who may read the metrics page of a picker is what a real API server says: by token, and by the right to the path."""

import json

import aiohttp

from tests.support.commands import command
from tests.support.kube import manifests as write
from tests.support.kube.space import Space
from tests.support.kube.users import User
from tests.support.waiting import until

REVIEWER = write.manifest(
    write.RBAC,
    "ClusterRole",
    "reviewer",
    rules=[
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ],
)
FLAGS = ("--endpoints=a=127.0.0.1:1", "--secure-serving=false", "--metrics-endpoint-auth")
PORTS = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")


async def answer(port: int, token: str = "", path: str = "/metrics") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}", headers=headers) as page:
        return page.status, await page.text()


async def bound_reader(space: Space) -> User:
    """A service account that may read metrics; the binding has effect by the time that the picker asks, or soon."""
    reader = await space.user("prometheus")
    name, rules = f"{space.namespace}-metrics-reader", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    await space.apply(write.manifest(write.RBAC, "ClusterRole", name, rules=rules))
    await space.apply(write.binding("ClusterRole", name, account="prometheus", namespace=space.namespace))
    return reader


async def test_page_is_for_accounts_that_may_get_its_path(space, tmp_path):
    picker = await space.user("picker", REVIEWER)
    reader, other = await bound_reader(space), await space.user("other")
    kubeconfig = picker.kubeconfig(tmp_path / "kubeconfig")
    async with command("serve", *FLAGS, *PORTS, KUBECONFIG=str(kubeconfig)) as process:
        port = int(json.loads(await process.says('"msg":"ready"'))["metrics"].rpartition(":")[2])
        assert (await answer(port))[0] == 401
        assert (await answer(port, "made-up"))[0] == 401
        status, text = await answer(port, other.token)
        assert (status, "nonResourceURLs" in text) == (403, True)

        async def may_read() -> bool:
            return (await answer(port, reader.token))[0] == 200

        await until(may_read, "the reader may read", seconds=30)
        assert "llm_d_epp_info" in (await answer(port, reader.token))[1]
        probed = json.loads((await answer(port, "", "/healthz"))[1])
        assert probed.keys() == {"ready"}  # what probes learn, which have no token


async def test_picker_that_may_not_ask_says_so(space, tmp_path):
    picker = await space.user("picker")
    kubeconfig = picker.kubeconfig(tmp_path / "kubeconfig")
    async with command("serve", *FLAGS, *PORTS, KUBECONFIG=str(kubeconfig)) as process:
        port = int(json.loads(await process.says('"msg":"ready"'))["metrics"].rpartition(":")[2])
        assert (await answer(port, picker.token))[0] == 503
        line = json.loads(await process.says("access cannot be reviewed by the cluster"))
        assert "allow create of tokenreviews" in line["reason"]
