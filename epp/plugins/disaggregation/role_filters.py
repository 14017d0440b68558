# SPDX-License-Identifier: Apache-2.0
"""Filters by the role of an endpoint: encode, prefill or decode."""

from collections.abc import Sequence
from typing import ClassVar

from epp.framework import Candidates, Filter, Mask, Request
from epp.framework.flow_control import DECODE_ROLES, ENCODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from epp.plugins.filters.labels import has_value, labelled


class _RoleFilter(Filter):
    roles: ClassVar[tuple[str, ...]]
    """Values of the label that stand for the stage."""
    takes_unlabelled: ClassVar[bool] = False
    """Whether endpoints without the label are kept."""

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        return has_value(candidates, ROLE_LABEL, self.roles, or_no_label=self.takes_unlabelled)

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        return [labelled(endpoint, ROLE_LABEL) for endpoint in dropped.endpoints]


class EncodeFilter(_RoleFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` is encode, encode-prefill or encode-prefill-decode."""

    plugin_type = "encode-filter"
    roles = ENCODE_ROLES


class PrefillFilter(_RoleFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes prefill.

    The values are prefill, encode-prefill, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "prefill-filter"
    roles = PREFILL_ROLES


class DecodeFilter(_RoleFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes decode, or if it has no such label.

    The values are decode, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "decode-filter"
    roles = DECODE_ROLES
    takes_unlabelled = True
