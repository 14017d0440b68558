# SPDX-License-Identifier: Apache-2.0
"""CPU time of quotas per request with 1,000 endpoints, from its checks to its end."""

from functools import partial

from timing import microseconds, quick, tell

from epp.admission.quotas import Blocked, Quotas
from epp.framework import Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Performance
from epp.framework.clock import SystemClock
from epp.framework.plugin import Guard, PluginObserver
from epp.framework.quotas import Quota, QuotaSource, TotalLimits
from epp.framework.request import RequestBody, Usage
from epp.framework.testing import candidates

ENDPOINTS = 1000
PLENTY = 10**12
TAG = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    count=8,
    memory_bytes=80 * 2**30,
    performance=Performance(fp16=989.0),
    cost=Cost(per_hour=4.0),
)
REQUESTS = Quota(total=TotalLimits(requests=PLENTY))
EVERYTHING = Quota(
    total=TotalLimits(
        requests=PLENTY,
        tokens=PLENTY,
        tokens_per_minute=PLENTY,
        accelerator_bytes=float(PLENTY),
        tflops=float(PLENTY),
        device_seconds_per_day=float(PLENTY),
        dollars_per_day=float(PLENTY),
    )
)


class _Listed(QuotaSource):
    """Two tenants: one with only a limit on requests, and one with all limits."""

    plugin_type = "listed"

    def quota_of(self, tenant: str) -> Quota | None:
        return {"requests": REQUESTS, "everything": EVERYTHING}.get(tenant)


def main() -> None:
    """Print the figures."""
    rounds = 20 if quick() else 2000
    pool = candidates(accelerators=[TAG] * ENDPOINTS)
    quotas = Quotas(SystemClock(), guard=Guard(PluginObserver()))
    quotas.use([_Listed()])
    usage = Usage(100, 50, 0)

    def serve(tenant: str) -> None:
        request = Request("bench", body=RequestBody("m", prompt_tokens=100, max_output_tokens=200), fairness_id=tenant)
        quotas.check_single(request)
        quotas.breach(request)
        quotas.fits_single(request, pool)
        quotas.fitting(request, pool)
        reservation = quotas.assume(request, pool.snapshot, 7)
        if isinstance(reservation, Blocked):
            raise TypeError(f"the request is blocked: {reservation.breach}")
        reservation.first_token()
        reservation.release(usage)

    tell(
        {
            "quota-none": microseconds(partial(serve, "other"), rounds),
            "quota-requests": microseconds(partial(serve, "requests"), rounds),
            "quota-everything": microseconds(partial(serve, "everything"), rounds),
        }
    )


if __name__ == "__main__":
    main()
