# SPDX-License-Identifier: Apache-2.0
"""Who may ask the admin port: holders of the token, or else programs of this machine, and no page of another site."""

import ipaddress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from epp.admin.answers import AdminError, BadAdminRequestError
from epp.admin.token_file import TokenFile
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer

_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for requests that no other site made."""
_SCHEME = "bearer "
METRICS_TOKEN_FLAG = "--metrics-token-file"  # noqa: S105  a flag


def is_loopback(host: str) -> bool:
    """Return whether an IP address, or the name localhost, is of this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Refuses requests that may not be answered."""

    def __init__(self, token: TokenFile | None) -> None:
        """Prepare; without a token, for a port of this machine only."""
        self._token = token

    def check(self, request: HttpRequest, *, needs_token: bool = True) -> None:
        """Raise AdminError for a request that is not to be answered."""
        host = request.headers.get("host", "")
        self._check_host(host)
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none").lower()
        if site not in _OWN_SITES or (origin is not None and origin.lower() != f"http://{host.lower()}"):
            raise AdminError(
                HTTPStatus.FORBIDDEN, "Forbidden", "this request is of a page of another site: ask from a program"
            )
        if needs_token and self._token is not None and not self._token.matches(bearer(request)):
            raise _unauthorized("--admin-token-file")

    def _check_host(self, host: str) -> None:
        """Refuse a name that anyone may point at this machine, where no token tells friends from others."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if not name:
            raise BadAdminRequestError("the header Host is missing or no host: send the host that you connect to")
        if self._token is None and not is_loopback(name):
            raise AdminError(
                HTTPStatus.FORBIDDEN,
                "Forbidden",
                "without a token, this port is for 127.0.0.1, [::1] and localhost alone: connect to one of these, or "
                "start with --admin-token-file",
            )


class TokenAccess:
    """Says of a request to the metrics port why it is refused."""

    def __init__(self, file: Path) -> None:
        """Read the token; raises ConfigurationError."""
        self._token = TokenFile(file, METRICS_TOKEN_FLAG)

    async def __call__(self, request: HttpRequest) -> Answer | None:
        """Return the refusal; None for a request that may be answered."""
        return None if self._token.matches(bearer(request)) else _unauthorized(METRICS_TOKEN_FLAG).answer


def _unauthorized(flag: str) -> AdminError:
    return AdminError(
        HTTPStatus.UNAUTHORIZED,
        "Unauthorized",
        f"the token is missing or wrong: send `Authorization: Bearer` with the content of {flag}",
        headers={"WWW-Authenticate": "Bearer"},
    )


def bearer(request: HttpRequest) -> str:
    """Return the token of a request; empty where it has none."""
    value = request.headers.get("authorization", "")
    return value[len(_SCHEME) :].strip() if value.lower().startswith(_SCHEME) else ""
