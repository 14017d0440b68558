# SPDX-License-Identifier: Apache-2.0
"""Quotas of tenants for operators: metrics, log lines of alerts, and what `/healthz` says of these."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import structlog
from prometheus_client.registry import CollectorRegistry

from epp.admission.quotas import Quotas
from epp.framework.clock import Clock
from epp.framework.errors import OverQuotaError, QuotaExceededError, RequestError
from epp.framework.messages import printable
from epp.telemetry.families import Counters, Gauges
from epp.telemetry.request_series import OTHER, shortened

_MOST_TENANTS = 100
"""Tenants with series of their own: clients can name any number."""
_MOST_ALERTS = 1000
_LINES_A_MINUTE = 20
_MINUTE = 60.0

_log = structlog.get_logger()


class QuotaSeries:
    """Written by the event loop; what it shows is read by any thread."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        labels = ("tenant", "resource")

        def gauges(name: str, text: str) -> Gauges:
            return Gauges(f"llm_d_epp_quota_{name}", text, labels, registry)

        self._limit = gauges("limit", "Limit of a quota on all requests of a tenant; memory in bytes.")
        self._used = gauges("used", "Use of a quota by all requests of a tenant; memory in bytes.")
        self._alert = gauges("alert", "1 if a quota is almost used up, by its alert threshold, else 0.")
        self._refused = Counters(
            "llm_d_epp_quota_refused_total", "Requests refused for a limit of a quota, by that limit.", labels, registry
        )
        self._counted: OrderedDict[str, set[str]] = OrderedDict()
        """Tenants with refused requests, the last one refused at the end, and the limits that these were for."""
        self._alerts: dict[tuple[str, str], tuple[float, float]] = {}
        """Use and limit by tenant and key."""
        self._minute_since = clock.now()
        self._lines = 0
        self._unsaid = 0

    def refused(self, error: RequestError) -> None:
        """Count a request that is refused, if that is for a quota."""
        if not isinstance(error, (OverQuotaError, QuotaExceededError)):
            return
        tenant, key = shortened(error.breach.tenant), error.breach.key
        if tenant not in self._counted and len(self._counted) >= _MOST_TENANTS:
            self._fold()
        self._counted.setdefault(tenant, set()).add(key)
        self._counted.move_to_end(tenant)
        self._refused.labels(tenant, key).inc()

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Take note of a limit that is almost used up, or is so no more; say it, a few times a minute."""
        if is_over:
            self._alerts.pop((tenant, key), None)
        elif len(self._alerts) < _MOST_ALERTS:
            self._alerts[tenant, key] = used, limit
        if not self._may_say():
            self._unsaid += 1
        elif is_over:
            _log.info("quota no longer almost used up", tenant=printable(tenant), limit=key)
        else:
            _log.warning("quota almost used up", tenant=printable(tenant), limit=key, used=used, most=limit)

    @property
    def alerts(self) -> Sequence[Mapping[str, object]]:
        """Limits that are almost used up, with the use as the alert began."""
        return [
            {"tenant": printable(tenant), "limit": key, "used": used, "most": limit}
            for (tenant, key), (used, limit) in list(self._alerts.items())
        ]

    def show(self, quotas: Quotas, named: Iterable[str]) -> None:
        """Set the gauges to limits and use now: of the named tenants first, so that clients cannot displace them."""
        for gauge in (self._limit, self._used, self._alert):
            gauge.clear()
        if not quotas.is_active:
            return
        first = dict.fromkeys(islice(named, _MOST_TENANTS))
        lines = [line for tenant in first for line in quotas.report(tenant)]
        others: set[str] = set()
        for line in quotas.report(most=_MOST_TENANTS):
            if line.tenant in first:
                continue
            if line.tenant not in others and len(first) + len(others) >= _MOST_TENANTS:
                break
            others.add(line.tenant)
            lines.append(line)
        for line in lines:
            labels = shortened(line.tenant), line.key
            self._limit.labels(*labels).set(line.limit)
            self._used.labels(*labels).set(line.used)
            self._alert.labels(*labels).set(float(line.is_alerting))

    def _fold(self) -> None:
        """Count the tenant that was not refused for longest among all others."""
        tenant, keys = self._counted.popitem(last=False)
        for key in keys:
            self._refused.labels(OTHER, key).inc(self._refused.labels(tenant, key).value)
            self._refused.remove(tenant, key)

    def _may_say(self) -> bool:
        now = self._clock.now()
        if now - self._minute_since >= _MINUTE:
            if self._unsaid:
                _log.warning("more quotas were almost used up, or are no more", changes=self._unsaid)
            self._minute_since, self._lines, self._unsaid = now, 0, 0
        self._lines += 1
        return self._lines <= _LINES_A_MINUTE
