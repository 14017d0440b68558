"""What the gateway and a pod are told where one port answers for all data-parallel ranks of the pod."""

from dataclasses import replace

from epp.framework import ProfileResult
from epp.framework.headers import DATA_PARALLEL


def primary_addresses(result: ProfileResult, port: int) -> tuple[str, ...]:
    """Return `ip:port` of the primary port for each target."""
    return tuple(replace(target, port=port).hostport for target in result.targets)


def rank_header(result: ProfileResult) -> dict[str, str]:
    """Return the header that names the first target's own `ip:port`."""
    return {DATA_PARALLEL: result.targets[0].hostport}
