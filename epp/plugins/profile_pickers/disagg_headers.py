"""The headers that tell the decode endpoint who prefills and who encodes for it."""

from epp.framework import ProfileResult
from epp.framework.headers import ENCODERS, PREFILLER


def disagg_headers(
    decode: ProfileResult, prefill: ProfileResult | None = None, encode: ProfileResult | None = None
) -> dict[str, str]:
    """Return the address of the prefill target and those of the encode targets; no header for a leg that did not run.

    The prefill header holds one address, the first target's: the protocol has no fallbacks there. The encode header
    is a list, as encoders share the media items. The decode target is never told to call itself: where it is the first
    prefill target there is no prefill header, and where it is one of the encoders the others remain.
    """
    own = decode.targets[0].hostport
    headers: dict[str, str] = {}
    if prefill is not None and (prefiller := prefill.targets[0].hostport) != own:
        headers[PREFILLER] = prefiller
    if encode is not None:
        encoders = [target.hostport for target in encode.targets if target.hostport != own]
        if encoders:
            headers[ENCODERS] = ",".join(encoders)
    return headers
