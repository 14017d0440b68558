# SPDX-License-Identifier: Apache-2.0
"""Pods on nodes with hardware, and a picker that may read what bears on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai

from epp.kube.resources import ACCELERATORS, MEMORY_QUOTAS
from tests.support.config_files import picker_config
from tests.support.kube.client import Manifest
from tests.support.kube.fleet import Fleet
from tests.support.kube.manifests import RBAC, manifest
from tests.support.kube.pickers import PATIENCE_SECONDS, Picker, picker_as
from tests.support.kube.space import Space
from tests.support.kube.users import PICKER_ROLE
from tests.support.waiting import until

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "1"}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1"}
ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}
READ = ["get", "list", "watch"]
_RULES = [
    {"apiGroups": [each.group], "resources": [each.plural], "verbs": READ} for each in (*ACCELERATORS, *MEMORY_QUOTAS)
]
HARDWARE_ROLE = manifest(RBAC, "ClusterRole", "hardware", rules=_RULES)
"""What a picker reads of hardware and its quotas, and nothing more."""


def config(*plugins: str) -> str:
    return picker_config("\n".join(["plugins:", *(f"- {{{plugin}}}" for plugin in plugins)]))


def only(bound: str, fallback: str = "false") -> str:
    """Return a configuration that drops the endpoints out of a bound."""
    return config(f"type: accelerator-filter, parameters: {{{bound}, fallbackOnEmpty: {fallback}}}")


async def pods_on_nodes(fleet: Fleet) -> None:
    for name in "ab":
        await fleet.start(name, node=node_of(fleet.space, name), resources=ONE_GPU)
    await fleet.space.pool(ports=fleet.ports)


async def label_nodes(space: Space, **more: str) -> list[Manifest]:
    """Create the nodes of the pods `a`, with an H100, and `b`, with a T4."""
    return [await space.node(node_of(space, pod), labels={**gpu, **more}) for pod, gpu in (("a", H100), ("b", T4))]


def node_of(space: Space, pod: str) -> str:
    """Return the name of the pod's node: nodes of all tests are in one cluster."""
    return f"{space.namespace}-{pod}"


@asynccontextmanager
async def picker_with(
    space: Space,
    directory: Path,
    text: str,
    *flags: str,
    roles: tuple[dict, ...] = (PICKER_ROLE, HARDWARE_ROLE),
    pods: str = "ab",
    **environment: str,
) -> AsyncIterator[Picker]:
    """Run a picker with a configuration, or the default one for an empty text."""
    user = await space.user("picker", *roles)
    kubeconfig = user.kubeconfig(directory / "kubeconfig")
    source = ("--pool-name=pool", f"--pool-namespace={space.namespace}", *([f"--config-text={text}"] if text else []))
    async with picker_as(kubeconfig, *source, *flags, **environment) as picker:
        await picker.uses(*(f"{pod}-rank-0" for pod in pods))
        yield picker


async def served_by(picker: Picker, *names: str) -> None:
    """Wait until these servers, and no others, answer requests."""
    wanted = {f"{name}-rank-0" for name in names}

    async def same() -> bool:
        try:
            return await picker.answers(4) == wanted
        except openai.APIStatusError:  # a filter drops both endpoints for now
            return False

    await until(same, f"requests are answered by {sorted(wanted)}", seconds=PATIENCE_SECONDS)
    assert await picker.answers(8) == wanted


def accelerator_class(product: str, **spec: object) -> dict:
    discovery = {"nodeSelector": {"nvidia.com/gpu.product": product}}
    return manifest("ome.io/v1beta1", "AcceleratorClass", "gold", spec={"discovery": discovery, **spec})
