# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from epp.framework import Endpoint
from epp.framework.datalayer import PageError
from epp.framework.snapshot import MODELS
from epp.pool.collectors.sources.http import ModelsDataExtractor, ModelsDataSource, ModelsSourceParameters

E = Endpoint("e", "10.0.0.1", 8000)
LIST = b"""{"object": "list", "data": [
    {"id": "qwen3-8b", "object": "model", "owned_by": "vllm", "root": "/models/qwen3", "parent": null,
     "max_model_len": 32768, "permission": [{"id": "modelperm-1", "allow_sampling": true}]},
    {"id": "lora-a", "object": "model", "created": 1795188, "root": "/loras/a", "parent": "qwen3-8b"}
]}"""


def source(**parameters: object) -> ModelsDataSource:
    return ModelsDataSource(msgspec.convert(parameters, ModelsSourceParameters))


def test_models_and_their_adapters_are_named():
    report = ModelsDataExtractor().extract(LIST, E)
    assert (report.attributes, report.columns) == ({MODELS: {"qwen3-8b", "lora-a"}}, {})
    assert ModelsDataExtractor().extract(b'{"object": "list", "data": []}', E).attributes == {MODELS: frozenset()}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"vllm:num_requests_waiting 3\n",
        b"[]",
        b'{"error": "not found"}',
        b'{"data": [{"name": "m"}]}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": "\xff"}]}',
        b'{"data": null}',
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_page_that_is_no_such_list_is_refused_with_a_hint(page):
    with pytest.raises(PageError, match=r"endpoint default/e: the page is not a list of models.*check the path"):
        ModelsDataExtractor().extract(page, E)


def test_list_of_ten_thousand_objects_is_read_and_no_longer_one_nor_one_of_more_than_two_mebibytes():
    def page(count):
        return b'{"data": [' + b", ".join(b'{"id": "%d"}' % number for number in range(count)) + b"]}"

    assert len(ModelsDataExtractor().extract(page(9_999), E).attributes[MODELS]) == 9_999
    with pytest.raises(PageError, match=r"default/e: the list of models has more than .* 10000 objects"):
        ModelsDataExtractor().extract(page(10_000), E)
    with pytest.raises(PageError, match="the list of models has more than 2097152 bytes"):
        ModelsDataExtractor().extract(b'{"data": [], "x": "' + b"x" * 2**21 + b'"}', E)


async def test_list_is_fetched_from_where_openai_has_it(server):
    server.page = LIST
    one = source()
    assert await one.fetch(server.endpoint()) == LIST
    await one.close()
    (request,) = server.asked
    assert (request.path, request.headers["Accept"]) == ("/v1/models", "application/json")


def test_defaults_and_what_may_be_said_instead():
    assert (source().interval_seconds, source().port) == (10.0, None)
    assert (source(interval="1m").interval_seconds, source(port=9000).port) == (60.0, 9000)
    with pytest.raises(msgspec.ValidationError, match="clientCertPath and clientKeyPath belong together"):
        source(clientKeyPath="key.pem")
