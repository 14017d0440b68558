# SPDX-License-Identifier: Apache-2.0
"""The port that the model server of a pod listens on, where no InferencePool says it."""

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from epp.hardware.resources import resource_requests
from epp.kube.objects.core import Container, Pod, PodSpec

DEFAULT_PORT = 8000
"""Of vLLM and SGLang behind it, in most of their examples."""

_FLAGS = ("--port", "--http-port", "--http_port")
_PORT = re.compile(r"[0-9]{1,5}")
_IN_COMMAND = re.compile(r"(?:^|\s)(?:--port|--http-port|--http_port)(?:=|\s+)([0-9]{1,5})(?:\s|$)")
_NAMES = ("http", "api", "serv", "rest", "openai", "inference")


class ServingPort(NamedTuple):
    """A port, and how it is known."""

    number: int
    source: str
    """`containerPort`, `argument` or `assumed`."""


def serving_port(pod: Pod) -> ServingPort:
    """Return the port of the container that requests accelerators, or else of the first.

    Its containerPort; of several that one with its argument `--port`, or the name of an HTTP port, or 8000, or the
    first. Without any, its argument `--port`, or 8000.
    """
    container = _server(pod)
    if container is None:
        return ServingPort(DEFAULT_PORT, "assumed")
    argument = _argument(container)
    declared = dict(_declared(container))
    if declared:
        named = (number for number, name in declared.items() if name.lower().startswith(_NAMES))
        default = DEFAULT_PORT if DEFAULT_PORT in declared else next(iter(declared))
        if argument is not None and argument in declared:
            return ServingPort(argument, "containerPort")
        return ServingPort(next(named, default), "containerPort")
    return ServingPort(DEFAULT_PORT, "assumed") if argument is None else ServingPort(argument, "argument")


def requests_accelerators(pod: Pod) -> bool:
    """Return whether the pod requests accelerators, by resources or by claims."""
    return bool(resource_requests(pod) or pod.spec.resource_claims or pod.claims)


def _server(pod: Pod) -> Container | None:
    containers = pod.spec.containers
    for container in containers:
        if resource_requests(Pod(metadata=pod.metadata, spec=PodSpec(containers=(container,)))):
            return container
    return containers[0] if containers else None


def _declared(container: Container) -> Iterator[tuple[int, str]]:
    for port in _list(container.ports):
        if isinstance(port, Mapping) and port.get("protocol", "TCP") == "TCP":
            number = port.get("containerPort")
            if isinstance(number, int) and 0 < number < 2**16:
                yield number, str(port.get("name", ""))


def _argument(container: Container) -> int | None:
    """Return the port of an argument `--port 8000` or `--port=8000`, a shell command included."""
    words = [str(word) for part in (container.command, container.args) for word in _list(part)]
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        text = value if equals else following
        if name in _FLAGS and _PORT.fullmatch(text) and 0 < int(text) < 2**16:
            return int(text)
    found = next((int(match[1]) for word in words if (match := _IN_COMMAND.search(word))), 0)
    return found if 0 < found < 2**16 else None


def _list(part: object) -> list[object]:
    return list(part) if isinstance(part, list | tuple) else []
