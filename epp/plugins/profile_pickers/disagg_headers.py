"""The headers that tell the decode endpoint who prefills and who encodes for it."""

from epp.framework import ProfileResult

PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"


def disagg_headers(
    decode: ProfileResult, prefill: ProfileResult | None = None, encode: ProfileResult | None = None
) -> dict[str, str]:
    """Return `ip:port` of each leg's targets, several separated by commas; no header for a leg that did not run.

    The decode target is never told to call itself. Where the prefill leg picked that very endpoint first, the prompt
    is computed there, so there is no prefill header at all; where it is one of the encoders, the others remain.
    """
    own = decode.targets[0].hostport
    headers: dict[str, str] = {}
    if prefill is not None and prefill.targets[0].hostport != own:
        headers[PREFILLER] = ",".join(_others(prefill, own))
    if encode is not None and (encoders := _others(encode, own)):
        headers[ENCODERS] = ",".join(encoders)
    return headers


def _others(leg: ProfileResult, own: str) -> list[str]:
    return [target.hostport for target in leg.targets if target.hostport != own]
