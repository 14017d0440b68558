# SPDX-License-Identifier: Apache-2.0
"""Quotas on the metrics page, in the log and on /healthz."""

import pytest
from structlog.testing import capture_logs

from epp.admission.quotas import Quotas, Reservation
from epp.framework import ManualClock, Request, RequestBody
from epp.framework.plugin import Guard, PluginObserver
from epp.framework.refusals import Breach, NoEndpointsError, OverQuotaError, QuotaExceededError
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from epp.routing.director import Refusal
from epp.telemetry.metrics import Metrics

WORKERS = "total.max.workers.limit"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def metrics(clock):
    return Metrics("pool", clock)


@pytest.fixture
def value(metrics):
    """Return a value of a metric of quotas."""

    def value(name: str, tenant: str, resource: str = WORKERS) -> float | None:
        return metrics.registry.get_sample_value(f"llm_d_epp_quota_{name}", {"tenant": tenant, "resource": resource})

    return value


@pytest.fixture
def quotas(clock, metrics):
    """Make quotas from parameters of tenant-quotas, observed by the metrics."""

    def quotas(**parameters) -> Quotas:
        found = Quotas(clock, guard=Guard(PluginObserver()), observer=metrics)
        found.use([Registry().build("tenant-quotas", parameters, name="quotas", clock=clock)])
        return found

    return quotas


def take(quotas: Quotas, tenant: str) -> Reservation:
    request = Request(f"of {tenant}", RequestBody(model="m"), fairness_id=tenant)
    found = quotas.assume(request, candidates(labels=[{}]).snapshot, 0)
    assert isinstance(found, Reservation)
    return found


def refuse(metrics: Metrics, tenant: str, key: str = WORKERS) -> None:
    metrics.refused(Refusal(QuotaExceededError(Breach(tenant, key, 5, 4), 1)))


def test_limit_use_and_alert_of_each_tenant_are_shown(quotas, metrics, value):
    of = quotas(default={"total": {"concurrentRequests": 4}, "alertThresholdPercent": 75})
    held = [take(of, tenant) for tenant in "aaab"]
    metrics.refresh_quotas(of)
    assert [value(name, "a") for name in ("limit", "used", "alert")] == [4, 3, 1]  # 3 is 75 % of 4
    assert [value(name, "b") for name in ("limit", "used", "alert")] == [4, 1, 0]
    for each in held:
        each.release()
    metrics.refresh_quotas(of)
    assert value("used", "a") in (None, 0)
    of.use([])
    metrics.refresh_quotas(of)
    assert value("limit", "a") is None


def test_tenants_with_series_are_bounded_and_those_of_the_configuration_are_shown(quotas, metrics, value):
    team = {"tenant": "team-a", "total": {"concurrentRequests": 9}}
    of = quotas(quotas=[team], default={"total": {"concurrentRequests": 4}})
    for number in range(500):
        take(of, f"tenant {number}")
    metrics.refresh_quotas(of, ["team-a"])
    assert (value("limit", "team-a"), value("used", "team-a")) == (9, 0)
    (family,) = [each for each in metrics.registry.collect() if each.name == "llm_d_epp_quota_used"]
    assert len(family.samples) == 100


def test_refused_requests_are_counted_by_tenant_and_limit(metrics, value):
    refuse(metrics, "a")
    refuse(metrics, "a")
    metrics.refused(Refusal(OverQuotaError(Breach("a", "single.max.dollars", 5, 4))))
    metrics.refused(Refusal(NoEndpointsError()))
    assert value("refused_total", "a") == 2
    assert value("refused_total", "a", "single.max.dollars") == 1


def test_refused_requests_beyond_a_hundred_tenants_are_counted_together(metrics, value):
    for number in range(100):
        refuse(metrics, f"t{number}")
    refuse(metrics, "t0")
    refuse(metrics, "t100")
    refuse(metrics, "t101")
    assert (value("refused_total", "t0"), value("refused_total", "t101")) == (2, 1)
    assert value("refused_total", "t1") is None  # it and t2 were not refused for longest
    assert value("refused_total", "other") == 2
    (family,) = [each for each in metrics.registry.collect() if each.name == "llm_d_epp_quota_refused"]
    assert sum(sample.value for sample in family.samples if sample.name.endswith("_total")) == 103


def test_alert_is_logged_as_it_begins_and_shown_until_it_ends(quotas, metrics, clock):
    of = quotas(default={"total": {"concurrentRequests": 2}})
    with capture_logs() as logs:
        held = [take(of, "a"), take(of, "a")]
    alert = {"tenant": "a", "limit": WORKERS, "used": 2, "most": 2}
    assert logs == [{"event": "quota almost used up", "log_level": "warning", **alert}]
    assert metrics.quotas.alerts == [alert]
    for each in held:
        each.release()
    clock.advance(100)
    with capture_logs() as logs:
        of.sweep()
    assert [log["event"] for log in logs] == ["quota no longer almost used up"]
    assert metrics.quotas.alerts == []


def test_hostile_names_of_tenants_are_short_and_printable(metrics):
    with capture_logs() as logs:
        metrics.alert("\x1b[31m" + "x" * 5000, WORKERS, 4, 4, is_over=False)
    for shown in (logs[0]["tenant"], metrics.quotas.alerts[0]["tenant"]):
        assert shown.isprintable()
        assert len(shown) <= 64
    refuse(metrics, "x" * 5000)
    (family,) = [each for each in metrics.registry.collect() if each.name == "llm_d_epp_quota_refused"]
    assert all(len(sample.labels["tenant"]) <= 128 for sample in family.samples)


def test_log_lines_of_alerts_are_few_however_many_tenants_there_are(metrics, clock):
    with capture_logs() as logs:
        for number in range(5000):
            metrics.alert(f"t{number}", WORKERS, 4, 4, is_over=False)
    assert len(logs) == 20
    assert len(metrics.quotas.alerts) == 1000
    clock.advance(60)
    with capture_logs() as logs:
        metrics.alert("t0", WORKERS, 1, 4, is_over=True)
    assert [(log["event"], log.get("changes")) for log in logs] == [
        ("more quota alerts began or ended", 4980),
        ("quota no longer almost used up", None),
    ]
