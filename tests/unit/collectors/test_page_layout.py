# SPDX-License-Identifier: Apache-2.0
"""Series that are looked for where they were: always what a search through the whole page finds."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.datalayer import PageError
from epp.pool.collectors.exposition import PageLayout, Selector

PAGE = (Path(__file__).parents[2] / "data" / "vllm-0.32" / "metrics-busy-lora.txt").read_bytes()
NAMES = ("a", "a_b", "ab", "a_total", "b")
SELECTORS = [*map(Selector, NAMES), Selector("a", {"k": "1"})]
blocks = st.sampled_from(["", '{k="1"}', '{k="2"}', '{k="1",l="}"}', "{}"])
values = st.sampled_from(["0", "7", "12345678", "NaN", "+Inf", "1.5 1795188181348", "x", ""])


@st.composite
def families(draw: st.DrawFn, names: st.SearchStrategy[list[str]]) -> bytes:
    """A page in the format: all lines of a name in one place, with or without comments and other lines in between."""
    page = draw(st.sampled_from(["", "\n", "c 1\n", "# nothing\n"]))
    for name in draw(names):
        page += draw(st.sampled_from(["", f"# HELP {name} a 1\n# TYPE {name} gauge\n"]))
        for _ in range(draw(st.integers(0, 3))):
            page += f"{name}{draw(blocks)} {draw(values)}\n"
    return page.removesuffix(draw(st.sampled_from(["", "\n"]))).encode()


def outcome(read, *arguments: object) -> object:
    try:
        return [(one.block, str(one.value)) for one in read(*arguments)]
    except PageError as error:
        return str(error)


@given(st.lists(families(st.lists(st.sampled_from(NAMES), unique=True)), min_size=2, max_size=6))
def test_page_after_page_reads_as_if_there_had_been_none_before(pages):
    layout = PageLayout()
    for page in pages:
        if layout.matches(page):
            assert all(outcome(layout.read, one, page) == outcome(one.read, page) for one in SELECTORS)
        for selector in SELECTORS:
            assert outcome(layout.read, selector, page) == outcome(selector.read, page)


@given(st.permutations(NAMES), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**12)), max_size=20))
def test_numbers_that_grow_move_what_follows_and_are_still_read(order, changes):
    numbers = dict.fromkeys(order, 0)
    layout = PageLayout()
    for index, number in [(0, 0), *changes]:
        numbers[NAMES[index]] = number
        page = "".join(f'# TYPE {name} gauge\n{name}{{k="1"}} {value}\n' for name, value in numbers.items()).encode()
        for selector in SELECTORS:
            assert outcome(layout.read, selector, page) == outcome(selector.read, page)


def test_page_of_which_other_lines_changed_is_the_same():
    layout = PageLayout()
    waiting = Selector("vllm:num_requests_waiting")
    assert not layout.matches(PAGE)
    before = layout.read(waiting, PAGE)
    later = PAGE.replace(b"\nprocess_cpu_seconds_total ", b"\nprocess_cpu_seconds_total 1")
    assert later != PAGE
    assert layout.matches(later)
    assert layout.read(waiting, later) is before
    assert not layout.matches(later.replace(b'model_name="tiny"} 4.0', b'model_name="tiny"} 5.0'))


def test_line_that_joins_its_like_is_seen():
    layout, selector = PageLayout(), Selector("a")
    page = b'x 1\na{k="1"} 1\ny 100000\n'
    assert len(layout.read(selector, page)) == 1
    for longer in (page.replace(b"y", b'a{k="2"} 1\ny'), page.replace(b"x 1\n", b'x 1\na{k="2"} 1\n')):
        assert not layout.matches(longer)
        assert len(layout.read(selector, longer)) == 2


@pytest.mark.parametrize(
    "added", [b"wanted 1\n", b"# HELP wanted Text that explains it.\n# TYPE wanted gauge\nwanted 1\n"]
)
def test_series_that_joins_a_large_page_is_seen_within_eight_pages(added):
    layout, selector = PageLayout(), Selector("wanted")
    assert [layout.read(selector, PAGE) for _ in range(20)] == [()] * 20
    seen = [bool(layout.read(selector, PAGE + added)) for _ in range(8)]
    assert seen[-1]
    assert all(seen) or len(added) < 48
