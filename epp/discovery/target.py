"""An endpoint as people write it: an IP address or a host name, and a port."""

import ipaddress
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from epp.framework.accelerators import AcceleratorDeclaration

_PORT_LIMIT = 65535
_HOST_LIMIT = 253
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")


@dataclass(frozen=True, slots=True)
class Target:
    """What becomes an endpoint once its host has an address."""

    name: str
    host: str
    """An IP literal in its canonical form, or a host name."""
    port: int
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    cluster: str = ""
    accelerator: AcceleratorDeclaration | None = None

    @property
    def is_literal(self) -> bool:
        """Whether the host is an IP address already."""
        return _is_ip(self.host)


def read_host(text: str) -> str:
    """Return an IP literal in canonical form or a host name as it stands; raises ValueError with the remedy."""
    if _is_ip(text):
        return str(ipaddress.ip_address(text))
    if text.startswith("[") and text.endswith("]") and _is_ip(text[1:-1]):
        raise ValueError(f"{text!r} has brackets: write {text[1:-1]}")
    last = text.rstrip(".").rpartition(".")[2]
    if last.isdigit() or ":" in text or len(text) > _HOST_LIMIT or not _HOST.fullmatch(text):
        raise ValueError(f"{text!r} is neither an IPv4 or IPv6 address nor a host name, and the port goes elsewhere")
    return text


def read_port(value: object) -> int:
    """Return a port given as a number or as its digits; raises ValueError."""
    port = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= _PORT_LIMIT:
        raise ValueError(f"{reprlib.repr(value)} is not a port: write a number between 1 and {_PORT_LIMIT}")
    return port


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
