# SPDX-License-Identifier: Apache-2.0
"""Several sources of endpoints in a configuration: their names and order, and each mistake with its place."""

import pytest

PLUGINS = """
plugins:
- {type: file-discovery, name: one, parameters: {path: one.yaml}}
- {type: file-discovery, name: two, parameters: {path: two.yaml}}
- type: queue-scorer
"""
HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


def listed(*sources: str, under: str = ".endpoints") -> str:
    """Return a configuration with this list under `discovery.endpoints`, or under `discovery` itself."""
    found = f"[{', '.join(sources)}]"
    return f"{PLUGINS}dataLayer: {{discovery: {f'{{endpoints: {found}}}' if under else found}}}\n"


def named(assembly) -> list[tuple[str, int, str]]:
    return [(each.name, each.precedence, each.plugin.name) for each in assembly.sources]


@pytest.mark.parametrize("under", ["", ".endpoints"])
def test_ocm_14_sources_are_in_order_of_precedence_and_of_the_list(build, under):
    assembly = build(listed("{pluginRef: one}", "{pluginRef: two, name: far, precedence: 5}", under=under), head=HEAD)
    assert named(assembly) == [("far", 5, "two"), ("one", 0, "one")]
    assert named(build(listed("{pluginRef: two}", "{pluginRef: one}", under=under), head=HEAD)) == [
        ("two", 0, "two"),
        ("one", 0, "one"),
    ]


@pytest.mark.parametrize("form", ["endpoints: {pluginRef: one}", "pluginRef: one", "endpoints: [{pluginRef: one}]"])
def test_ocm_14_single_source_stays_valid(build, form):
    assembly = build(f"{PLUGINS}dataLayer: {{discovery: {{{form}}}}}\n", head=HEAD)
    assert named(assembly) == [("one", 0, "one")]
    assert assembly.discovery is assembly.sources[0].plugin


@pytest.mark.parametrize(
    ("sources", "place", "said"),
    [
        (["{pluginRef: one}", "{pluginRef: one, name: x}"], "[1]", "names the plugin 'one' twice"),
        (["{pluginRef: one, name: x}", "{pluginRef: two, name: x}"], "[1].name", "two sources are named 'x'"),
        (["{pluginRef: one, precedenc: 1}"], "[0].precedenc", "unknown key; did you mean 'precedence'?"),
        (["{pluginRef: one, precedence: high}"], "[0].precedence", "is 'high'; write a whole number"),
        (["{pluginRef: queue-scorer}"], "[0].pluginRef", "does not implement Discovery"),
        (["{}"], "[0].pluginRef", "is missing; add it"),
        ([], "", "at least 1 item"),
        ([f"{{pluginRef: p{number}}}" for number in range(17)], "", "at most 16"),
    ],
)
@pytest.mark.parametrize("under", ["", ".endpoints"])
def test_ocm_14_mistake_is_named_with_its_place(refused, sources, place, said, under):
    (problem,) = refused(listed(*sources, under=under), head=HEAD)
    assert f"dataLayer.discovery{under}{place}: " in str(problem)
    assert said in str(problem)
