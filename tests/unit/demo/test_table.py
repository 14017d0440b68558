# SPDX-License-Identifier: Apache-2.0
"""How a snapshot looks to people."""

import io
from math import nan

import msgspec
import pytest
from rich.console import Console

from epp.framework import Endpoint, Headers, Records, Snapshot
from epp.framework.accelerators.tag import AcceleratorTag, Cost, Partition
from epp.framework.errors import BodyMissingError
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.lab.demo.traffic import LastRequest, Row, line, rows, table
from epp.routing.director import Cause
from tests.support.exchanges import BODY, new_bench

BUSY = candidates(
    waiting=[3],
    running=[12],
    kv_usage=[0.256],
    in_flight=[15],
    served=[1234],
    prefix_hit_tokens=[300],
    prefix_query_tokens=[400],
).snapshot
SILENT = candidates(waiting=[nan], reachable=[0]).snapshot


def drawn(snapshot: Snapshot, caption: str = "") -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table(snapshot, caption))
    return console.file.getvalue()


def test_numbers_are_whole_and_shares_are_percent():
    (row,) = rows(BUSY)
    # 300 of 400 prompt tokens were found
    assert row == Row("e0", "10.0.0.1:8000", "-", "-", "3", "12", "26%", "15", "1234", "75%", "up")


def test_unreported_value_is_a_dash():
    (row,) = rows(SILENT)
    assert row == Row("e0", "10.0.0.1:8000", "-", "-", "-", "-", "-", "0", "0", "-", "unreachable")


def test_hardware_and_its_price_are_shown():
    part = Partition(profile="3g.20gb", memory_fraction=0.5)
    tag = AcceleratorTag(model="a100", count=1, partition=part, cost=Cost(per_hour=2.0))
    (row,) = rows(candidates(records={ACCELERATOR: [tag]}).snapshot)
    assert (row.accelerator, row.dollars_per_hour) == ("A100 3g.20gb", "1.00")  # half of the memory, half of the price


def test_line_has_all_endpoints_by_slot():
    snapshot = candidates(waiting=[1, 2], running=[0, 4], kv_usage=[0.0, 1.0], reachable=[1, 0]).snapshot
    assert line(snapshot) == (
        "e0 up: waiting 1 running 0 KV 0% served 0 prefix hits - | "
        "e1 unreachable: waiting 2 running 4 KV 100% served 0 prefix hits -"
    )


def test_slots_without_an_endpoint_have_no_row():
    everyone = candidates(waiting=[1, 2, 3]).snapshot
    endpoints = list(everyone.endpoints.values)
    endpoints[1] = None
    two = Snapshot(
        slots=everyone.slots[[0, 2]],
        available=everyone.available[[0, 2]],
        endpoints=Records[Endpoint | None](tuple(endpoints)),
        columns=everyone.columns,
    )
    assert [(row.name, row.waiting) for row in rows(two)] == [("e0", "1"), ("e2", "3")]


def test_table_has_a_heading_and_two_lines_for_each_endpoint_and_fits_into_80_columns():
    tags = [AcceleratorTag(model="a100", count=1, partition=Partition(profile="3g.20gb")), AcceleratorTag()]
    pool = candidates(
        waiting=[100, 2],
        running=[250, 0],
        kv_usage=[1.0, 0.5],
        in_flight=[1000, 0],
        served=[123456, 0],
        reachable=[0, 1],
        prefix_hit_tokens=[9, 0],
        prefix_query_tokens=[10, 10],
        records={ACCELERATOR: tags},
    )
    _, _, heading, first, address, second, _ = drawn(pool.snapshot).splitlines()
    shown = [" ".join(each.split()) for each in (heading, first, address, second)]
    assert shown == [
        "endpoint accelerator $/h wait run KV flight served hits state",
        "e0 A100 3g.20gb - 100 250 100% 1000 123456 90% unreachable",
        "10.0.0.1:8000",
        "e1 - - 2 0 50% 0 0 0% up",
    ]


def test_last_request_is_told_below_the_table_and_is_no_markup():
    assert "last request: e0, [bold]" in drawn(BUSY, "last request: e0, [bold]")


def test_last_request_has_its_endpoint_and_the_reason_or_why_it_was_refused():
    last = LastRequest()
    assert last.text == "last request: none yet"
    bench = new_bench(observe=lambda _: last)
    bench.director.route(Headers([(":path", "/v1/chat/completions")]), BODY, None).complete(Cause.NATURAL)
    assert last.text == "last request: a, default: equal scores of 4; 0% cached"
    with pytest.raises(BodyMissingError):
        bench.director.route(Headers([(":method", "POST")]), b"", None)
    assert last.text == "last request: refused with 400, the request has no body: send a JSON object"


def test_clusters_have_a_column_where_endpoints_name_them():
    pool = candidates(waiting=[1, 2]).snapshot
    named = tuple(
        Endpoint(endpoint.name, endpoint.address, 8000, cluster=cluster)
        for endpoint, cluster in zip(pool.endpoints.values, ("east", "west"), strict=True)
    )
    in_clusters = msgspec.structs.replace(pool, endpoints=Records(named))
    assert "cluster" in drawn(in_clusters)
    assert "west" in drawn(in_clusters)
    assert "cluster" not in drawn(pool)
    assert line(in_clusters).startswith("e0 in east up: waiting 1")
