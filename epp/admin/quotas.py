# SPDX-License-Identifier: Apache-2.0
"""Quotas on the admin port: usage, and changes at run time with a dry run."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from itertools import islice

import structlog
from aiohttp import web
from msgspec import UNSET, UnsetType

from epp.admin.answers import (
    AdminError,
    BadAdminRequestError,
    LoopCalls,
    NotFoundError,
    as_json,
    read_as,
    read_object,
    read_switch,
)
from epp.admission.quotas import Adjustment, Quotas
from epp.admission.tenant_quota_objects import QuotaParameters, TenantName, written
from epp.framework.errors import ConfigurationError
from epp.framework.messages import printable, quoted
from epp.framework.plugin import Parameters
from epp.framework.quotas import Quota

PATH = "/api/quota"
SET_HERE = "set at run time"
"""Origin of a quota that was set through the admin port."""
_MOST_SHOWN = 200
"""Most tenants in one response; others can be requested by name."""
_MOST_NAMED = 100
"""Most tenants from configuration and objects in one response; they precede tenants that clients name."""
_EXCEEDED = "ScalingQuotaExceeded"
_DIGITS = 6

_log = structlog.get_logger()


class _AdjustBody(Parameters, frozen=True, kw_only=True):
    tenant: TenantName
    quota: QuotaParameters | UnsetType | None = UNSET
    """None to remove the limits that were set at run time."""
    force: bool = False
    """Whether limits may be lower than the current usage."""


def quota_routes(
    loop: LoopCalls,
    quotas: Callable[[], Quotas],
    named: Callable[[], Iterable[str]],
    notify: Callable[[str, Quota | None], None] = lambda _tenant, _quota: None,
) -> tuple[web.RouteDef, ...]:
    """Return the routes; the functions are called on the loop.

    `named` returns the tenants of configuration and objects. `notify` is called with each quota that is set, or None
    for one that is removed.
    """

    async def show_all(_request: web.Request) -> web.Response:
        """Return the quotas of all tenants, at most 200."""

        def found() -> list[dict[str, object]]:
            now = quotas()
            with_use = (line.tenant for line in now.report(most=_MOST_SHOWN))
            tenants = dict.fromkeys((*islice(named(), _MOST_NAMED), *with_use))
            each = (_shown(now, tenant) for tenant in islice(tenants, _MOST_SHOWN))
            return [one for one in each if one is not None]

        return as_json({"quotas": await loop.call(found)})

    async def show_one(request: web.Request) -> web.Response:
        tenant = request.match_info["name"]
        found = await loop.call(lambda: _shown(quotas(), tenant))
        if found is None:
            raise NotFoundError(f"{quoted(tenant)} has no quota and is not limited: set one with POST {PATH}/adjust")
        return as_json(found)

    async def adjust(request: web.Request) -> web.Response:
        """Set or remove the quota of a tenant; with `dryRun`, only report the effect."""
        dry_run = read_switch(request, "dryRun")
        body = read_as(_AdjustBody, await read_object(request))
        if isinstance(body.quota, UnsetType):
            raise BadAdminRequestError(
                'quota is missing: write the limits, such as {"total": {"concurrentRequests": 50}}, or null to '
                "remove the limits that were set at run time"
            )
        tenant = body.tenant
        quota = None if body.quota is None else body.quota.quota(SET_HERE)
        made = await loop.call(lambda: _adjusted(quotas(), tenant, quota, dry_run=dry_run, force=body.force))
        if made.is_applied:
            await loop.call(lambda: notify(tenant, quota))
            limits = None if made.after is None else written(made.after)
            _log.info("quota changed at run time", tenant=printable(tenant), quota=limits, taken_back=quota is None)
        outcome = _outcome(made, dry_run=dry_run)
        if made.breaches and not body.force:
            status = HTTPStatus.OK if dry_run else HTTPStatus.CONFLICT
            return AdminError(status, _EXCEEDED, _sentence(made), also=outcome).response
        return as_json(outcome)

    return (web.get(PATH, show_all), web.get(PATH + "/{name:.+}", show_one), web.post(f"{PATH}/adjust", adjust))


def _adjusted(quotas: Quotas, tenant: str, quota: Quota | None, *, dry_run: bool, force: bool) -> Adjustment:
    """Apply a change unless it is a dry run or exceeds the limits; for one call on the event loop."""
    present = quotas.quota_of(tenant)
    if quota is None and (present is None or present.origin != SET_HERE):
        raise NotFoundError(f"no quota of {quoted(tenant)} was set at run time: there is none to remove")
    try:
        made = quotas.adjust(tenant, quota, dry_run=True)
        return made if dry_run or (made.breaches and not force) else quotas.adjust(tenant, quota)
    except ConfigurationError as error:
        raise AdminError(HTTPStatus.CONFLICT, "TooManyQuotas", str(error)) from error


def _shown(quotas: Quotas, tenant: str) -> dict[str, object] | None:
    """Return the quota of a tenant and its usage; None without a quota."""
    quota = quotas.quota_of(tenant)
    if quota is None:
        return None
    return {
        "tenant": tenant,
        "origin": quota.origin,
        "override": quota.origin == SET_HERE,
        "quota": written(quota),
        "use": [
            {
                "key": line.key,
                "limit": line.limit,
                "used": round(line.used, _DIGITS),
                **({"elsewhere": round(line.elsewhere, _DIGITS)} if line.elsewhere else {}),
                "remaining": round(line.headroom, _DIGITS),
                "percent": round(100.0 * line.used / line.limit, 2),
                "alert": line.is_alerting,
                "uncounted": line.uncounted,
            }
            for line in quotas.report(tenant)
        ],
    }


def _outcome(made: Adjustment, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "tenant": made.tenant,
        "dryRun": dry_run,
        "applied": made.is_applied,
        "quota": None if made.after is None else written(made.after),
        "headroom": {line.key: round(line.headroom, _DIGITS) for line in made.lines},
        "exceeded": [
            {"key": each.key, "used": round(each.requested, _DIGITS), "limit": each.limit} for each in made.breaches
        ],
    }


def _sentence(made: Adjustment) -> str:
    parts = ", ".join(f"{each.key} is {each.limit:g}, and {each.requested:g} is used" for each in made.breaches)
    return (
        f"{quoted(made.tenant)} uses more than these limits: {parts}; write higher limits, wait until the usage falls, "
        'or send "force": true: new requests then wait or are refused until it falls'
    )
