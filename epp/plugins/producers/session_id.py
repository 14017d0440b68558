"""Finds the id of the session that a request belongs to."""

from epp.framework import Candidates, Parameters, Producer, Request
from epp.framework.headers import SESSION_ID as SESSION_ID_HEADER
from epp.framework.request import SESSION_ID, Headers


class SessionIdParameters(Parameters, frozen=True):
    """Where the session id stands: in a header or in a cookie."""

    header_name: str = ""
    """Name of the request header; with no cookie named either, `x-session-id`."""
    cookie_name: str = ""
    """Name of the cookie, as written: upper and lower case differ."""

    def __post_init__(self) -> None:
        """Refuse two places."""
        if self.header_name and self.cookie_name:
            raise ValueError(
                f"headerName is {self.header_name!r} and cookieName is {self.cookie_name!r}; leave one of them out"
            )


class SessionIdProducer(Producer[SessionIdParameters]):
    """Publishes the value of a header or of a cookie as the request's session id; nothing, where that is empty."""

    plugin_type = "session-id-producer"

    def setup(self) -> None:
        self._key = SESSION_ID.produced_by(self.name)
        self._header = (self.parameters.header_name or SESSION_ID_HEADER).lower()
        self.writes = (self._key,)

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002
        wanted = self.parameters.cookie_name
        session = cookie(request.headers, wanted) if wanted else request.headers.get(self._header)
        if session:
            request.put(self._key, session)


def cookie(headers: Headers, name: str) -> str:
    """Return the value of the first cookie of that name that has one, without quotes; empty for none.

    Cookies may come in several fields, and what does not look like a cookie is passed over.
    """
    for field, value in headers.fields():
        if field == "cookie":
            for pair in value.split(";"):
                found, _, content = pair.partition("=")
                if found.strip() == name and (unquoted := content.strip().strip('"')):
                    return unquoted
    return ""
