# SPDX-License-Identifier: Apache-2.0
"""Answers of a cluster on tokens: asked once, remembered for a while, and bounded in number."""

import asyncio
import json
from typing import Any

import pytest

from epp.framework import ManualClock
from epp.kube.access import ApiError, ApiUnreachableError
from epp.kube.reviews import ALLOWED_SECONDS, KEPT_SECONDS, REFUSED_SECONDS, NoVerdictError, TokenReviews, Verdict

PATH = "/metrics"


class Cluster:
    """Knows the tokens of `names`, and lets `readers` get anything."""

    def __init__(self) -> None:
        self.names = {"token-of-reader": "reader", "token-of-other": "other"}
        self.readers = {"reader"}
        self.error: Exception | None = None
        self.asked: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def request(self, method: str, path: str, *, body: Any) -> bytes:
        await self.go.wait()
        assert method == "POST"
        self.asked.append(body)
        if self.error is not None:
            raise self.error
        spec = body["spec"]
        if path.endswith("/tokenreviews"):
            name = self.names.get(spec["token"])
            user = {"username": name, "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}
            return json.dumps({"status": {"authenticated": True, "user": user} if name else {}}).encode()
        assert path.endswith("/subjectaccessreviews")
        assert (spec["groups"], spec["extra"]) == (("g",), {"k": ["v"]})
        assert spec["nonResourceAttributes"] == {"path": PATH, "verb": "get"}
        return json.dumps({"status": {"allowed": spec["user"] in self.readers}}).encode()


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reviews(cluster, clock) -> TokenReviews:
    return TokenReviews(cluster, clock)


async def test_token_is_allowed_forbidden_or_unknown(reviews):
    assert await reviews.verdict("token-of-reader", PATH) is Verdict.ALLOWED
    assert await reviews.verdict("token-of-other", PATH) is Verdict.FORBIDDEN
    assert await reviews.verdict("made-up", PATH) is Verdict.UNKNOWN
    assert await reviews.verdict("", PATH) is Verdict.UNKNOWN


@pytest.mark.parametrize(("token", "seconds"), [("token-of-reader", ALLOWED_SECONDS), ("made-up", REFUSED_SECONDS)])
async def test_answer_counts_for_a_while(reviews, cluster, clock, token, seconds):
    first = await reviews.verdict(token, PATH)
    asked = len(cluster.asked)
    clock.advance(seconds - 1)
    cluster.readers.clear()
    cluster.names["made-up"] = "reader"
    assert await reviews.verdict(token, PATH) is first
    assert len(cluster.asked) == asked
    clock.advance(2)
    assert await reviews.verdict(token, PATH) is Verdict.FORBIDDEN


async def test_those_that_ask_at_once_share_an_answer(reviews, cluster):
    found = await asyncio.gather(*(reviews.verdict("token-of-reader", PATH) for _ in range(50)))
    assert set(found) == {Verdict.ALLOWED}
    assert len(cluster.asked) == 2


async def test_few_tokens_are_looked_up_at_once(reviews, cluster):
    cluster.go.clear()
    asking = [asyncio.create_task(reviews.verdict(f"made-up-{number}", PATH)) for number in range(100)]
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    cluster.go.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(verdict is Verdict.UNKNOWN for verdict in found) == len(cluster.asked) == 8
    assert all(isinstance(each, NoVerdictError) for each in found if each is not Verdict.UNKNOWN)


@pytest.mark.parametrize("error", [ApiUnreachableError("away"), ApiError(500, "", "broken")])
async def test_known_reader_goes_on_for_ten_minutes_while_the_cluster_is_away(reviews, cluster, clock, error):
    await reviews.verdict("token-of-reader", PATH)
    await reviews.verdict("token-of-other", PATH)
    cluster.error = error
    clock.advance(KEPT_SECONDS - 1)
    assert await reviews.verdict("token-of-reader", PATH) is Verdict.ALLOWED
    for token in ("token-of-other", "new"):
        with pytest.raises(NoVerdictError):
            await reviews.verdict(token, PATH)
    clock.advance(2)
    with pytest.raises(NoVerdictError):
        await reviews.verdict("token-of-reader", PATH)


async def test_lack_of_rights_is_told_with_the_remedy(reviews, cluster):
    cluster.error = ApiError(403, "Forbidden", "no")
    with pytest.raises(NoVerdictError, match="TokenReview was rejected: no: allow create of tokenreviews and subject"):
        await reviews.verdict("token-of-reader", PATH)


async def test_tokens_that_clients_make_up_are_forgotten(reviews, cluster):
    for number in range(2000):
        await reviews.verdict(f"made-up-{number}", PATH)
    assert len(reviews._cache) == 1024  # noqa: SLF001  what memory they take
