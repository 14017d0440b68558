"""Lets requests of any API through unread."""

from epp.framework import Headers, Parser, RequestBody


class PassthroughParser(Parser):
    """The parser of every path that no other one claims: it reads nothing, so there is neither model nor prompt."""

    plugin_type = "passthrough-parser"
    names_model = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ()

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:  # noqa: ARG002
        return RequestBody()
