# SPDX-License-Identifier: Apache-2.0
"""Series of a page, found by name and labels, also where they were on the page before."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.framework.datalayer import PageError
from epp.pool.collectors.exposition import PageLayout, Selector

PAGES = Path(__file__).parents[2] / "data" / "vllm-0.32"


def values(spec: str, page: bytes) -> list[float]:
    return [series.value for series in Selector.parse(spec).read(page)]


@pytest.mark.parametrize("page", ["metrics-idle.txt", "metrics-busy.txt", "metrics-busy-lora.txt"])
def test_every_series_of_a_genuine_page_reads_as_the_reference_parser_reads_it(page):
    content = (PAGES / page).read_bytes()
    expected: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(content.decode()):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    assert len(expected) > 100
    for name, samples in expected.items():
        assert [(one.labels, one.value) for one in Selector(name).read(content)] == samples


LABELLED = b'a{k="max",g="0"} 1\na{k="max",g="1"} 2\na{k="used",g="0"} 3\na 4\n'


@pytest.mark.parametrize(
    ("spec", "page", "expected"),
    [
        pytest.param(
            "a", b'a_by_reason{reason="x"} 5\naa 9\na{e="0"} 2\na{e="1"} 3\naa 9\n', [2, 3], id="longer names"
        ),
        pytest.param("a", b"a 1\na 2\nb 3", [1, 2], id="at the start"),
        pytest.param("b", b"a 1\nb 2\nb 3", [2, 3], id="at the end"),
        pytest.param("a", b'# HELP a is a 7\n# TYPE a gauge\nb{text="\\na 5"} 1\na 1\n', [1], id="mentioned"),
        pytest.param("a", b"b{{{\xff one\na 1\n", [1], id="others cannot be read"),
        pytest.param("a", b"b 1\n", [], id="absent"),
        pytest.param("a", b"", [], id="empty page"),
        pytest.param("a{k=max}", LABELLED, [1, 2], id="label"),
        pytest.param('a{g="0", k=max}', LABELLED, [1], id="all labels"),
        pytest.param("a{k=none}", LABELLED, [], id="no such label"),
    ],
)
def test_series_of_the_name_with_the_labels_are_read(spec, page, expected):
    assert values(spec, page) == expected


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"a NaN", math.nan),
        (b"a +Inf", math.inf),
        (b"a -Inf", -math.inf),
        (b"a 1.5e3", 1500.0),
        (b"a 4.0 1795188181348", 4.0),
        (b'a{x="y"} 4.0 1795188181348', 4.0),
        (b'a{x="y",}\t4', 4.0),
        (b'a {x="y"} 4', 4.0),
        (b"a{} 4", 4.0),
        (b'a{x="y"} 4 # {trace="}"} 1.0', 4.0),
    ],
)
def test_values_time_stamps_and_spaces(line, value):
    assert values("a", b"b 0\n" + line + b"\nb 0\n") == [pytest.approx(value, nan_ok=True)]


def test_braces_commas_and_quotes_in_a_label_value_are_text():
    (series,) = Selector("a").read(b'a{x="}, y=\\"1\\"",y="C:\\\\new\\nline"} 1\n')
    assert series.labels == {"x": '}, y="1"', "y": "C:\\new\nline"}


@pytest.mark.parametrize("line", [b"a one", b"a ", b'a{x="y"', b'a{x="y} 1', b"a{"])
def test_wanted_series_that_cannot_be_read_makes_the_page_bad_and_is_shown(line):
    with pytest.raises(PageError, match="cannot be read") as refusal:
        values("a", b"b 0\n" + line + b"\nc 1\n")
    assert line.decode().strip() in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "selector"),
    [
        ("a", Selector("a")),
        ("a{}", Selector("a")),
        (" vllm:x { k = v } ", Selector("vllm:x", {"k": "v"})),
        ('a{k="x,y}\\"z",l=w,}', Selector("a", {"k": 'x,y}"z', "l": "w"})),
    ],
)
def test_spec_says_name_and_labels(spec, selector):
    assert Selector.parse(spec) == selector


@pytest.mark.parametrize(
    "spec", ["", "1a", "a{", "a{k}", "a{k=}", 'a{k!="v"}', 'a{k=~"v"}', "a{k=v w}", "sum(a)", "a b"]
)
def test_spec_that_says_something_else_is_refused(spec):
    with pytest.raises(ValueError, match="is not a metric spec") as refusal:
        Selector.parse(spec)
    assert repr(spec) in str(refusal.value)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=5, unique=True), st.floats())
def test_label_values_survive_the_reference_writer(texts, value):
    registry = CollectorRegistry()
    gauge = Gauge("wanted", "Text.", ["first", "second"], registry=registry)
    for text in texts:
        gauge.labels(text, "\\" + text).set(value)
    read = Selector("wanted").read(generate_latest(registry))
    assert [one.labels for one in read] == [{"first": text, "second": "\\" + text} for text in texts]
    assert all(one.value == value or math.isnan(value) for one in read)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_label_value_can_be_asked_for(text):
    registry = CollectorRegistry()
    Gauge("wanted", "Text.", ["key"], registry=registry).labels(text).set(1)
    quoted = text.replace("\\", r"\\").replace('"', r"\"")
    assert [one.value for one in Selector.parse(f'wanted{{key="{quoted}"}}').read(generate_latest(registry))] == [1.0]


PAGE = (PAGES / "metrics-busy-lora.txt").read_bytes()
NAMES = ("a", "a_b", "ab", "a_total", "b")
SELECTORS = [*map(Selector, NAMES), Selector("a", {"k": "1"})]
blocks = st.sampled_from(["", '{k="1"}', '{k="2"}', '{k="1",l="}"}', "{}"])
numbers = st.sampled_from(["0", "7", "12345678", "NaN", "+Inf", "1.5 1795188181348", "x", ""])


@st.composite
def families(draw: st.DrawFn, names: st.SearchStrategy[list[str]]) -> bytes:
    """A page in the format: all lines of a name in one place, with or without comments and other lines in between."""
    page = draw(st.sampled_from(["", "\n", "c 1\n", "# nothing\n"]))
    for name in draw(names):
        page += draw(st.sampled_from(["", f"# HELP {name} a 1\n# TYPE {name} gauge\n"]))
        for _ in range(draw(st.integers(0, 3))):
            page += f"{name}{draw(blocks)} {draw(numbers)}\n"
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
