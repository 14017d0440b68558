# SPDX-License-Identifier: Apache-2.0
"""Quotas on a manual clock, from fixed sources, and endpoints with given hardware."""

from epp.admission.quotas import Quotas
from epp.admission.quotas.reservation import QuotaObserver
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Performance
from epp.framework.clock import Clock
from epp.framework.plugin import Guard, PluginObserver
from epp.framework.quotas import Quota, QuotaSource, SingleLimits, TotalLimits
from epp.framework.request import Request, RequestBody, Usage
from epp.framework.testing import candidates

GIB = 2**30
MIDNIGHT = 20_000 * 86_400.0
"""A wall clock at the beginning of a day."""


class TwoClocks(Clock):
    """Monotonic time and a wall clock that can be set by themselves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall = MIDNIGHT

    def now(self):
        return self.seconds

    def utc(self):
        return self.wall

    def advance(self, seconds):
        self.seconds += seconds
        self.wall += seconds


class Listed(QuotaSource):
    """Quotas by tenant."""

    plugin_type = "listed"

    def __init__(self, quotas, requests_per_endpoint=1):
        super().__init__()
        self.quotas = quotas
        self.requests_per_endpoint = requests_per_endpoint

    def quota_of(self, tenant):
        return self.quotas.get(tenant)


class Failing(QuotaSource):
    plugin_type = "failing"

    def quota_of(self, tenant):
        raise RuntimeError("no idea")


class Told(QuotaObserver, PluginObserver):
    """What observers were told."""

    def __init__(self):
        self.alerts = []
        self.failed = []
        self.over = []

    def alert(self, tenant, key, used, limit, *, is_over):
        self.alerts.append((tenant, key, used, limit, is_over))

    def over_quota(self, request, breach):
        self.over.append(breach)

    def plugin_failed(self, plugin, error, problem):
        self.failed.append(problem)


def tag(*, gib=0.0, tflops=0.0, devices=1, dollars_per_hour=None):
    """Return a tag with so much memory and so many TFLOPS in each of its devices, and the price of each."""
    return AcceleratorTag(
        kind=AcceleratorKind.GPU,
        count=devices,
        memory_bytes=int(gib * GIB) or None,
        performance=Performance(fp16=tflops),
        cost=Cost(per_hour=dollars_per_hour),
    )


def quota(*, waits=True, alert_percent=95.0, single=None, **total):
    return Quota(
        single=SingleLimits(**(single or {})), total=TotalLimits(**total), waits=waits, alert_percent=alert_percent
    )


class Desk:
    """Quotas, and requests that go to endpoints."""

    def __init__(self, quotas=None, *, endpoints=None, requests_per_endpoint=1, sources=None, clock=None, **total):
        self.clock = clock or TwoClocks()
        self.told = Told()
        self.quotas = Quotas(self.clock, guard=Guard(self.told), observer=self.told)
        if quotas is None:
            quotas = {"a": quota(**total)}
        self.source = Listed(quotas, requests_per_endpoint)
        self.pool = candidates(accelerators=endpoints or [AcceleratorTag()] * 3)
        self.came_back = []
        self.quotas.use([self.source] if sources is None else sources)
        self.quotas.on_release = self.came_back.append
        self._count = 0

    def request(self, tenant="a", *, priority=0, prompt=0, output=0):
        self._count += 1
        body = RequestBody(model="m", prompt_tokens=prompt, max_output_tokens=output)
        return Request(f"{tenant}{self._count}", body=body, fairness_id=tenant, priority=priority)

    def take(self, tenant="a", slot=0, *, legs=(), **more):
        """Send a request; return its reservation, or what it is blocked by."""
        return self.quotas.assume(self.request(tenant, **more), self.pool.snapshot, slot, legs)

    def used(self, key, tenant="a"):
        """Return what is used of a limit."""
        found = {line.key: line.used for line in self.quotas.report(tenant)}
        return found[key]


def usage(prompt, completion):
    return Usage(prompt, completion, 0)
