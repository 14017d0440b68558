# SPDX-License-Identifier: Apache-2.0
"""The walk of deploy/README.md on kind: its objects and its values, with pods that are processes."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import yaml

from tests.gateways.front import ENVOY
from tests.gateways.kubelet import EPP, Pod, kubelet_of, mounted, picker
from tests.gateways.place import PATIENCE_SECONDS, Answer, Place
from tests.support.documents import blocks, commands, file_of
from tests.support.kube.charts import REPOSITORY, Helm
from tests.support.kube.running import Cluster
from tests.support.kube.space import space_in
from tests.support.waiting import until

README = REPOSITORY / "deploy" / "README.md"
PORT = 28081
"""Of the Envoy: Envoy Gateway has 8081 on all addresses."""
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  which pods have for themselves


async def image(pod: Pod) -> Sequence[str]:
    """Return the command line of a container of the image: a picker, or the command that it has."""
    if "command" not in pod.container:
        return await picker(pod)
    return (*EPP, *(each.replace(ALL_ADDRESSES, pod.ip) for each in pod.container["command"][1:]))


async def envoy(pod: Pod) -> Sequence[str]:
    """Return the command line of the Envoy beside the picker, which has the addresses of its pod for all."""
    arguments = await mounted(pod)
    (file,) = pod.directory.glob("*/envoy.yaml")
    text = file.read_text().replace(ALL_ADDRESSES, pod.ip).replace("127.0.0.1", pod.ip)
    file.write_text(text.replace("port_value: 8081", f"port_value: {PORT}"))
    return (ENVOY, *arguments)


async def answered(place: Place, body: bytes) -> bool:
    return (await place.ask(whole=body)).status == 200


async def walk(cluster: Cluster, helm: Helm, directory: Path) -> tuple[Answer, set[str]]:
    """Return the answer that the walk ends with, and the addresses of the model servers."""
    written = [block for block in blocks(README) if (file_of(block) or ("",))[0] == "model-servers.yaml"]
    lines = [
        shlex.split(command) for block in blocks(README) if block.language == "console" for command in commands(block)
    ]
    (install,) = [words for words in lines if words[:3] == ["helm", "install", "first"]]
    (request,) = [words for words in lines if words[0] == "curl" and "8888" in " ".join(words)]
    values = [words for flag, words in itertools.pairwise(install) if flag == "--set"]
    async with (
        space_in(cluster) as space,
        kubelet_of(space, directory, {"inference-epp:": image, "envoyproxy/envoy:": envoy}) as kubelet,
        aiohttp.ClientSession() as http,
    ):
        place = Place(space, kubelet, helm, http)
        for block in written:
            await space.apply(yaml.safe_load(block.text))
        await kubelet.ready(2, app="my-model-server")
        await place.install(*values, release="first", files=())
        (pod,) = await kubelet.pods(**{"app.kubernetes.io/instance": "first"})
        place.url = f"http://{pod['status']['podIP']}:{PORT}"
        body = request[request.index("-d") + 1].encode()
        await until(lambda: answered(place, body), "a request is answered", seconds=PATIENCE_SECONDS)
        answer = await place.ask(whole=body)
        servers = {f"{each['status']['podIP']}:8000" for each in await kubelet.pods(app="my-model-server")}
        return answer, servers
