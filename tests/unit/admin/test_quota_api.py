# SPDX-License-Identifier: Apache-2.0
"""Quotas on the admin port: shown, changed with and without a dry run, and taken back."""

from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from epp.admin.quotas import quota_routes
from epp.admission.quotas import Quotas, Reservation
from epp.admission.quotas import usage as engine_limits
from epp.framework import ManualClock, Request, RequestBody
from epp.framework.plugin import Guard, PluginObserver
from epp.framework.quotas import Blocked
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from tests.support.admin_client import asked, loop_calls, opened

WORKERS, TOKENS = "total.max.workers.limit", "total.max.tokens"
USUAL = {"whenExceeded": "Wait", "alertThresholdPercent": 95.0}
CONFIG = {
    "quotas": [
        {"tenant": "team-a", "single": {"promptTokens": 100}, "total": {"concurrentRequests": 10}},
        {"tenant": "idle", "single": {"acceleratorMemory": "1536Mi", "dollars": 0.5}, "whenExceeded": "Refuse"},
    ]
}


class Office:
    """Quotas of a configuration on an event loop of their own, and an admin port."""

    def __init__(self, parameters: dict, stack: ExitStack) -> None:
        clock = ManualClock()
        plugin = Registry().build("tenant-quotas", parameters, name="tenant-quotas", clock=clock)
        self.quotas = Quotas(clock, guard=Guard(PluginObserver()))
        self.quotas.use([plugin])
        self.pool = candidates(labels=[{}])
        loop = stack.enter_context(loop_calls())
        self.port = stack.enter_context(opened(quota_routes(loop, lambda: self.quotas, plugin.named_quotas.keys)))

    def take(self, tenant: str, count: int = 1) -> list[Reservation | Blocked]:
        return [
            self.quotas.assume(
                Request(f"{tenant}{number}", RequestBody(model="m", max_output_tokens=10), fairness_id=tenant),
                self.pool.snapshot,
                0,
            )
            for number in range(count)
        ]

    def adjust(self, tenant: str, quota: object, *, query: str = "", **more: object):
        return asked(self.port, "POST", f"/api/quota/adjust{query}", {"tenant": tenant, "quota": quota, **more})

    def shown(self, tenant: str) -> dict:
        return asked(self.port, path=f"/api/quota/{tenant}").body


@pytest.fixture
def office():
    """Open an office with these parameters of tenant-quotas."""
    with ExitStack() as stack:
        yield lambda **parameters: Office(parameters or CONFIG, stack)


def test_tf_16_quota_of_a_tenant_is_shown_with_its_use(office):
    of = office()
    of.take("team-a", 4)
    quota = {"single": {"promptTokens": 100}, "total": {"concurrentRequests": 10}, **USUAL}
    use = {"key": WORKERS, "limit": 10, "used": 4, "remaining": 6, "percent": 40.0, "alert": False, "uncounted": 0}
    assert of.shown("team-a") == {
        "tenant": "team-a", "origin": "quotas of tenant-quotas", "override": False, "quota": quota, "use": [use],
    }  # fmt: skip


def test_tf_16_all_quotas_are_shown_those_of_tenants_without_requests_too(office):
    of = office(**CONFIG, default={"total": {"concurrentRequests": 5}})
    of.take("somebody")
    found = {each["tenant"]: each for each in asked(of.port, path="/api/quota").body["quotas"]}
    assert set(found) == {"somebody", "team-a", "idle"}
    assert found["somebody"]["origin"] == "default of tenant-quotas"
    single = {"acceleratorMemory": "1536Mi", "dollars": 0.5}
    assert found["idle"]["quota"] == {"single": single, "total": {}, **USUAL, "whenExceeded": "Refuse"}
    assert found["idle"]["use"] == []


def test_tf_16_quotas_shown_at_once_are_bounded(office):
    of = office(**CONFIG, default={"total": {"concurrentRequests": 5}})
    for number in range(300):
        of.take(f"t{number}")
    found = [each["tenant"] for each in asked(of.port, path="/api/quota").body["quotas"]]
    assert (len(found), found[:2]) == (200, ["team-a", "idle"])
    assert of.shown("t299")["use"][0]["used"] == 1


def test_tf_16_number_of_changes_is_bounded(office, monkeypatch):
    monkeypatch.setattr(engine_limits, "MOST_SET", 2)
    of = office()
    assert [of.adjust(f"t{number}", {}).status for number in range(3)] == [200, 200, 409]
    for query in ("", "?dryRun=true"):
        assert of.adjust("t9", {}, query=query).error == "TooManyQuotas"
    assert of.adjust("t0", {"total": {"concurrentRequests": 1}}).status == 200


def test_tf_16_name_of_a_tenant_may_have_any_characters_and_one_without_a_quota_is_404(office):
    of = office(quotas=[{"tenant": "a/b c\u00fc", "total": {"concurrentRequests": 2}}])
    assert asked(of.port, path="/api/quota/a%2Fb%20c%C3%BC").body["tenant"] == "a/b c\u00fc"
    answer = asked(of.port, path="/api/quota/nobody")
    assert (answer.status, answer.error) == (404, "NotFound")


def test_tf_16_dry_run_says_what_would_be_left_and_changes_nothing(office):
    of = office()
    of.take("team-a", 4)
    before = of.shown("team-a")
    answer = of.adjust("team-a", {"total": {"concurrentRequests": 7, "tokensInFlight": 50}}, query="?dryRun=true")
    assert answer.status == 200
    quota = {"single": {}, "total": {"concurrentRequests": 7, "tokensInFlight": 50}, **USUAL}
    headroom = {WORKERS: 3, TOKENS: 10.0}
    assert answer.body == {
        "tenant": "team-a", "dryRun": True, "applied": False, "quota": quota, "headroom": headroom, "exceeded": [],
    }  # fmt: skip
    assert of.shown("team-a") == before


def test_tf_16_dry_run_below_present_use_has_a_typed_error_with_what_is_used(office):
    of = office()
    of.take("team-a", 4)
    answer = of.adjust("team-a", {"total": {"concurrentRequests": 3}}, query="?dryRun=true")
    assert (answer.status, answer.error) == (200, "ScalingQuotaExceeded")
    assert answer.body["exceeded"] == [{"key": WORKERS, "used": 4, "limit": 3}]
    assert answer.body["headroom"] == {WORKERS: -1}
    assert f"{WORKERS} is 3, and 4 is used" in answer.body["error"]["message"]
    assert of.shown("team-a")["quota"]["total"] == {"concurrentRequests": 10}


def test_tf_16_quota_below_present_use_is_409_and_set_by_force_alone(office):
    of = office()
    taken = of.take("team-a", 4)
    refused = of.adjust("team-a", {"total": {"concurrentRequests": 3}})
    assert (refused.status, refused.error, refused.body["applied"]) == (409, "ScalingQuotaExceeded", False)
    assert of.shown("team-a")["quota"]["total"] == {"concurrentRequests": 10}
    forced = of.adjust("team-a", {"total": {"concurrentRequests": 3}}, force=True)
    assert (forced.status, forced.body["applied"]) == (200, True)
    assert forced.body["exceeded"] == [{"key": WORKERS, "used": 4, "limit": 3}]
    assert "error" not in forced.body
    assert isinstance(of.take("team-a")[0], Blocked)
    for each in taken[:2]:
        assert isinstance(each, Reservation)
        each.release()
    assert isinstance(of.take("team-a")[0], Reservation)


def test_tf_16_change_counts_at_once_is_logged_and_can_be_taken_back(office):
    of = office()
    of.take("team-a", 10)
    assert isinstance(of.take("team-a")[0], Blocked)
    with capture_logs() as logs:
        assert of.adjust("team-a", {"total": {"concurrentRequests": 20}}).body["headroom"] == {WORKERS: 10}
    (log,) = logs
    assert (log["event"], log["tenant"]) == ("quota changed at run time", "team-a")
    assert log["quota"]["total"] == {"concurrentRequests": 20}
    (more,) = of.take("team-a")
    assert isinstance(more, Reservation)
    shown = of.shown("team-a")
    assert (shown["override"], shown["origin"]) == (True, "set at run time")
    assert shown["quota"]["single"] == {}  # it replaces that of the configuration as a whole
    assert of.adjust("team-a", None).status == 409  # 11 requests, and 10 of the configuration
    more.release()
    back = of.adjust("team-a", None)
    assert (back.status, back.body["quota"]["total"]) == (200, {"concurrentRequests": 10})
    assert of.shown("team-a")["override"] is False


def test_tf_16_tenant_without_a_quota_can_be_given_one_and_lose_it(office):
    of = office()
    assert of.adjust("new", {"total": {"concurrentRequests": 1}}).status == 200
    assert of.shown("new")["override"] is True
    gone = of.adjust("new", None)
    assert (gone.status, gone.body["quota"], gone.body["headroom"]) == (200, None, {})
    assert asked(of.port, path="/api/quota/new").status == 404


@pytest.mark.parametrize("tenant", ["team-a", "teem-a"])
def test_tf_16_nothing_to_take_back_is_404(office, tenant):
    for query in ("", "?dryRun=true"):
        answer = office().adjust(tenant, None, query=query)
        assert (answer.status, answer.error) == (404, "NotFound")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"quota": {}}, "tenant: tenant is missing; add it"),
        ({"tenant": "a"}, "quota is missing: write the limits"),
        ({"tenant": "", "quota": {}}, "tenant: tenant is empty; give a name"),
        ({"tenant": "x" * 254, "quota": {}}, "tenant: "),
        ({"tenant": "a", "quota": 5}, "quota: "),
        ({"tenant": "a", "quota": {}, "dryRun": True}, "dryRun: unknown key"),
        ({"tenant": "a", "quota": {}, "force": "yes"}, "force: force is 'yes'; write true or false"),
        ({"tenant": "a", "quota": {"single": {"promptTokens": -1}}}, "quota.single.promptTokens: promptTokens is -1"),
        ({"tenant": "a", "quota": {"total": {"acceleratorMemory": "x"}}}, "quota.total.acceleratorMemory: "),
        ({"tenant": "a", "quota": {"total": {"concurentRequests": 1}}}, "did you mean 'concurrentRequests'?"),
        ({"tenant": "a", "quota": {"tenant": "b"}}, "quota.tenant: unknown key"),
    ],
)
def test_tf_16_bad_body_is_400_with_place_and_remedy(office, body, message):
    answer = asked(office().port, "POST", "/api/quota/adjust", body)
    assert (answer.status, answer.error) == (400, "BadRequest")
    assert message in answer.body["error"]["message"]


@pytest.mark.parametrize("query", ["?dryRun=yes", "?dryRun=", "?dryRun=true&dryRun=false", "?dryRun=TRUE"])
def test_tf_16_dry_run_that_is_misspelt_changes_nothing(office, query):
    of = office()
    answer = of.adjust("team-a", {}, query=query)
    assert (answer.status, answer.error) == (400, "BadRequest")
    assert of.shown("team-a")["override"] is False
