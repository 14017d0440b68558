"""What the gateway and a pod are told where one port answers for all data-parallel ranks of the pod."""

from dataclasses import replace

from epp.framework import ProfileResult
from epp.framework.headers import DATA_PARALLEL

_PORTS = range(1, 65536)


def checked_port(port: int) -> None:
    """Raise ValueError for a number that is no port."""
    if port not in _PORTS:
        raise ValueError(f"primaryPort is {port}; it must be between 1 and 65535")


def primary_addresses(result: ProfileResult, port: int) -> tuple[str, ...]:
    """Return `ip:port` of the primary port for each target."""
    return tuple(replace(target, port=port).hostport for target in result.targets)


def rank_header(result: ProfileResult) -> dict[str, str]:
    """Return the header that names the first target's own `ip:port`."""
    return {DATA_PARALLEL: result.targets[0].hostport}
