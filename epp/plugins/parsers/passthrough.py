# SPDX-License-Identifier: Apache-2.0
"""Parser of paths that no other parser claims."""

from epp.framework import Headers, Parser, RequestBody


class PassthroughParser(Parser):
    """Accepts requests of any path that no other parser claims, without a model or a prompt."""

    plugin_type = "passthrough-parser"
    names_model = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ()

    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:  # noqa: ARG002
        return RequestBody()
