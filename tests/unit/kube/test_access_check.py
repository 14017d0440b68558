# SPDX-License-Identifier: Apache-2.0
"""Access that is tried kind by kind."""

import pytest

from epp.framework import ConfigurationError
from epp.kube.access import ApiUnreachableError, KubeApi
from epp.kube.resources import LEGACY_OBJECTIVES, OBJECTIVES, PODS, Importance, Need, Resource, needs_of_picker
from epp.kube.reviews import AccessState, check_access, user_of
from tests.support.kube.kube_server import kubeconfig

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REFUSED = (403, {"code": 403, "reason": "Forbidden", "message": "not allowed"})
CLAIMS = Resource("resource.k8s.io", ("v1", "v1beta1"), "resourceclaims", "ResourceClaim")
LEASES = Resource("coordination.k8s.io", ("v1",), "leases", "Lease")


def need(resource, **more):
    return Need(resource=resource, purpose="a test", namespace="llm", **more)


@pytest.fixture
def access(scripted):
    """Return what the user may do of one need."""

    async def access(wanted):
        (found,) = await check_access(scripted, [wanted])
        return found

    return access


async def test_kind_with_all_rights_is_allowed_in_the_version_that_is_installed(access, script):
    script.allow("resourceclaims")
    script.install("/apis/resource.k8s.io/v1beta1/resourceclaims")
    found = await access(need(CLAIMS))
    assert (found.state, found.version, found.missing) == (AccessState.ALLOWED, "v1beta1", ())


@pytest.mark.parametrize(
    ("verbs", "state", "missing"),
    [(("list",), AccessState.FORBIDDEN, ("get", "watch")), (("list", "watch"), AccessState.ALLOWED, ("get",))],
    ids=["without watch", "without a verb that the picker does not use"],
)
async def test_missing_verbs_are_named(access, script, verbs, state, missing):
    script.allow("pods", verbs=verbs)
    script.install("/api/v1/pods")
    found = await access(need(PODS))
    assert (found.state, found.missing) == (state, missing)


async def test_refused_list_counts_more_than_what_the_review_says(access, script):
    script.allow("pods")
    script.install("/api/v1/pods")
    script.answers["/api/v1/namespaces/llm/pods"] = REFUSED
    found = await access(need(PODS))
    assert (found.state, found.missing, found.reason) == (AccessState.FORBIDDEN, ("list",), "not allowed")


async def test_kind_that_is_not_installed_is_told_from_a_forbidden_one_by_what_the_server_has(access, script):
    script.install("/apis/resource.k8s.io/v1/deviceclasses")
    assert (await access(need(CLAIMS))).state is AccessState.ABSENT
    script.install("/apis/resource.k8s.io/v1beta1/resourceclaims")
    assert (await access(need(CLAIMS))).state is AccessState.FORBIDDEN
    for does_not_tell in (REFUSED, (200, "<html>")):
        script.answers["/apis/resource.k8s.io/v1"] = does_not_tell
        assert (await access(need(CLAIMS))).state is AccessState.FORBIDDEN


async def test_error_of_the_server_is_neither_forbidden_nor_absent(access, script):
    script.allow("pods")
    script.answers["/api/v1/namespaces/llm/pods"] = (500, {"code": 500, "message": "etcd is away"})
    found = await access(need(PODS))
    assert (found.state, found.reason) == (AccessState.FAILED, "etcd is away")


async def test_what_can_be_tried_is_tried_where_reviews_are_forbidden(access, script):
    script.answers[REVIEWS] = REFUSED
    script.install("/api/v1/pods")
    script.allow("pods", verbs=("list",))
    found = await access(need(PODS))
    assert (found.state, found.missing, found.untried) == (AccessState.FORBIDDEN, ("watch",), ("get",))
    script.allow("pods", verbs=("watch",))
    found = await access(need(PODS))
    assert (found.state, found.missing, found.untried) == (AccessState.ALLOWED, (), ("get",))
    method, path, _ = script.asked[-1]
    assert (method, path) == ("GET", "/api/v1/namespaces/llm/pods")


async def test_nothing_is_written_to_try_it(access, script):
    script.answers[REVIEWS] = REFUSED
    found = await access(need(LEASES, verbs=("create", "update")))
    assert (found.state, found.untried) == (AccessState.ALLOWED, ("create", "update"))
    assert {path for _, path, _ in script.asked} == {REVIEWS}


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ([OBJECTIVES, LEGACY_OBJECTIVES], (Importance.RECOMMENDED, Importance.OPTIONAL)),
        ([LEGACY_OBJECTIVES], (Importance.RECOMMENDED, Importance.RECOMMENDED)),
    ],
)
async def test_former_kind_matters_where_the_current_one_is_not_installed(scripted, script, installed, expected):
    script.install(*(each.path("v1alpha2") for each in installed))
    wanted = [need(each, importance=Importance.RECOMMENDED) for each in (OBJECTIVES, LEGACY_OBJECTIVES)]
    found = await check_access(scripted, wanted)
    assert tuple(each.need.importance for each in found) == expected


async def test_requests_under_way_are_few(scripted, script):
    await check_access(scripted, needs_of_picker("llm", pool_group="inference.networking.k8s.io", lease="l"))
    assert len(script.asked) > 60
    assert script.most_at_once <= 8


async def test_server_that_goes_away_ends_the_check(tmp_path, unused_tcp_port):
    scripted = KubeApi(kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(ApiUnreachableError):
        await check_access(scripted, [need(PODS)])
    with pytest.raises(ConfigurationError, match=r"^no response from the API server: .*; start it, or correct"):
        await user_of(scripted)
    await scripted.close()


async def test_user_is_the_one_that_the_server_sees(scripted, script):
    assert await user_of(scripted) == "system:serviceaccount:llm:picker"
    script.answers[USER] = (404, {"code": 404})  # a server of before 1.28
    assert await user_of(scripted) == ""


async def test_another_user_is_asked_for_in_each_request(script, tmp_path):
    scripted = KubeApi(script.write_kubeconfig(tmp_path / "kubeconfig"), as_user="system:serviceaccount:llm:other")
    await user_of(scripted)
    await check_access(scripted, [need(PODS)])
    await scripted.close()
    assert {headers.get("Impersonate-User") for _, _, headers in script.asked} == {"system:serviceaccount:llm:other"}


async def test_refused_credentials_and_strange_servers_are_one_sentence(scripted, script):
    script.answers[USER] = (401, {"code": 401, "message": "Unauthorized"})
    with pytest.raises(ConfigurationError, match=r"^the API server .* rejects the credentials: Unauthorized; log in"):
        await user_of(scripted)
    script.answers[USER] = (403, {"code": 403, "message": 'User "a" cannot impersonate resource "users"'})
    with pytest.raises(ConfigurationError, match=r"^--as: .*; allow the user of the kubeconfig to impersonate"):
        await user_of(scripted)
    script.answers[USER] = (200, "<html>Welcome")
    with pytest.raises(ConfigurationError, match="does not respond like a Kubernetes API server"):
        await user_of(scripted)
