# SPDX-License-Identifier: Apache-2.0
"""`epp check`: what it says of files, and how it ends."""

import json
from pathlib import Path
from unittest import mock

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from epp.cli.app import application

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
GOOD = HEAD + "plugins: [{type: queue-scorer}]\n"
WARNED = HEAD + "plugins: [{type: prefix-cache-scorer}]\n"
BAD = HEAD + "plugins:\n- type: queue-scorrer\n- type: max-score-picker\n  nmae: x\n"


def test_good_file_is_ok_and_shown_with_the_complete_graph(check):
    code, said = check(a=HEAD + "plugins: [{type: active-request-scorer}]\ndataLayer: {injectDefaults: false}\n")
    assert code == 0
    assert (
        said
        == """\
a.yaml: ok
request
├── parsers: openai-parser, anthropic-parser, vllmhttp-parser, passthrough-parser (added: the file names no parser)
├── profile picker single-profile-handler (added: one profile)
│   └── profile default
│       ├── scorer active-request-scorer, weight 1 (100%, Distribution) reads in_flight
│       └── picker max-score-picker (added: profile 'default' names no picker)
└── endpoint data
"""
    )


def test_what_the_file_leaves_out_is_shown_with_the_reason(check):
    _, said = check(a=GOOD)
    assert "    └── source metrics-data-source (added: dataLayer.injectDefaults)\n" in said
    assert "        └── extractor core-metrics-extractor (added: dataLayer.injectDefaults) writes waiting, " in said


def test_tree_shows_everything_a_request_meets_in_that_order(check):
    text = """\
plugins:
- {type: disagg-profile-handler, name: legs, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: always-disagg-pd-decider}
- {type: joint-aggregator}
- {type: decode-filter, parameters: {fallbackOnEmpty: true}}
- {type: prefill-filter, parameters: {fallbackOnEmpty: false}}
- {type: prefix-cache-scorer}
- {type: active-request-scorer, name: busy}
- {type: session-affinity-scorer}
- {type: agent-identity}
- {type: probabilistic-admitter}
- {type: openai-parser}
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: metrics-data-source, name: pages, parameters: {path: /m}}
- {type: core-metrics-extractor}
schedulingProfiles:
- name: decode
  plugins:
  - {pluginRef: decode-filter, onError: Skip}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: busy, onError: Fail}
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: session-affinity-scorer}, {pluginRef: busy}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
dataLayer:
  discovery: {pluginRef: file-discovery}
  sources: [{pluginRef: pages, extractors: [{pluginRef: core-metrics-extractor}]}]
"""
    code, said = check("--allow-experimental-plugins=true", a=HEAD + text)
    assert code == 0
    lines = iter(said.splitlines())
    for begins in (
        "├── parsers: openai-parser",
        "├── request headers: agent-identity",
        "├── admission: probabilistic-admitter",
        "├── producer approx-prefix-cache-producer (added: prefix-cache-scorer reads prefix-match) writes prefix-match",
        "├── profile picker legs (disagg-profile-handler), aggregator joint-aggregator",
        "│   ├── profile decode",
        "│   │   ├── filter decode-filter (falls back to all, onError Skip)",
        "│   │   ├── scorer prefix-cache-scorer, weight 3 (75%, Affinity) reads prefix-match",
        "│   │   ├── scorer busy (active-request-scorer), weight 1 (25%, Distribution, onError Fail)",
        "│   │   └── picker max-score-picker (added: profile 'decode' names no picker)",
        "│   └── profile prefill",
        "│       ├── filter prefill-filter",
        "│       ├── scorer session-affinity-scorer, weight 1 (50%, Affinity)",
        "├── before the request leaves: ",
        "├── response headers: session-affinity-scorer",
        "└── endpoint data",
        "    ├── source pages (metrics-data-source)",
        "    │   └── extractor core-metrics-extractor writes ",
        "    ├── tagger topology-extractor (added: joint-aggregator reads topology) writes topology",
        "    └── discovery file-discovery",
    ):
        assert any(line.startswith(begins) for line in lines), f"{begins!r} is not where it belongs in\n{said}"


def test_bad_file_is_refused_with_every_problem_and_its_place(check):
    code, said = check(a=BAD)
    assert code == 1
    assert (
        said
        == """\
a.yaml: refused, 2 errors
  error   a.yaml:4:3: plugins[0].type: plugin type 'queue-scorrer' is not registered; did you mean 'queue-scorer'?
  error   a.yaml:6:3: plugins[1].nmae: unknown key; did you mean 'name'?
"""
    )
    said = check(a=BAD.replace("nmae", "name"))[1]
    assert said.startswith("a.yaml: refused, 1 error\n")
    assert said.count("\n") == 2


def test_warnings_end_it_only_where_that_is_asked_for(check):
    code, said = check(a=WARNED)
    assert code == 0
    assert said.startswith("a.yaml: ok, 1 warning\n  warning a.yaml:1:1: schedulingProfiles[0]: profile 'default' has ")
    assert check("--strict", a=WARNED)[0] == 2
    assert check("--strict", a=GOOD)[0] == 0
    assert check("--strict", a=WARNED, b=BAD)[0] == 1


def test_each_of_several_files_is_judged_and_one_that_cannot_be_read_is_refused(check):
    code, said = check(a=GOOD, b=BAD, c=WARNED)
    assert code == 1
    heads = [line for line in said.splitlines() if line.startswith(("a.yaml", "b.yaml", "c.yaml"))]
    assert heads == ["a.yaml: ok", "b.yaml: refused, 2 errors", "c.yaml: ok, 1 warning"]
    code, said = check("missing.yaml", a=GOOD)
    assert code == 1
    assert "missing.yaml: refused, 1 error\n  error   missing.yaml: cannot be read: No such file or directory\n" in said
    assert said.startswith("a.yaml: ok\n")


def test_json_is_for_programs(check):
    code, said = check("--output", "json", a=GOOD, b=BAD, c=WARNED)
    assert code == 1
    good, bad, warned = json.loads(said)
    assert (good["file"], good["errors"], good["warnings"]) == ("a.yaml", [], [])
    (profile,) = good["graph"]["profiles"]
    assert profile["scorers"] == [
        {
            "plugin": {"name": "queue-scorer", "type": "queue-scorer", "reads": ["waiting"]},
            "weight": 1.0,
            "share": 1.0,
            "category": "Distribution",
            "onError": "Skip",
        }
    ]
    assert profile["picker"]["implied"] == "profile 'default' names no picker"
    keys = ("file", "line", "column", "inside", "path", "message", "remedy")
    unknown_type = "plugin type 'queue-scorrer' is not registered"
    assert bad["errors"] == [
        dict(zip(keys, error, strict=True))
        for error in (
            ("b.yaml", 4, 3, None, "plugins[0].type", unknown_type, "did you mean 'queue-scorer'?"),
            ("b.yaml", 6, 3, None, "plugins[1].nmae", "unknown key", "did you mean 'name'?"),
        )
    ]
    assert bad["graph"] is None
    (warning,) = warned["warnings"]
    assert (warning["file"], warning["line"], warning["path"]) == ("c.yaml", 1, "schedulingProfiles[0]")


def test_names_and_line_numbers_are_shown_as_they_are_written(check):
    text = """\
plugins: [{type: queue-scorer, name: 'q[bold]:100:'}]
schedulingProfiles: [{name: '[red]p', plugins: [{pluginRef: 'q[bold]:100:'}]}]
"""
    code, said = check(a=HEAD + text)
    assert code == 0
    assert "profile [red]p" in said
    assert "scorer q[bold]:100: (queue-scorer), weight 1" in said
    assert "a.yaml:100:1: plugns: unknown key" in check(a=HEAD + "\n" * 97 + "plugns: []\n")[1]


def test_class_of_a_module_is_allowed_by_flag(check):
    text = HEAD + "plugins: [{type: 'epp_scorers.load:QueueScorer'}]\n"
    code, said = check(a=text)
    assert code == 1
    assert "start with --allow-plugin-modules epp_scorers.load" in said
    assert check("--allow-plugin-modules", "nowhere, epp_scorers", a=text)[0] == 0


def test_ready_made_files_are_sound(check):
    code, said = check("--strict", *map(str, sorted((Path(__file__).parents[3] / "config").glob("*.yaml"))))
    assert [line for line in said.splitlines() if line.startswith(("  error", "  warning"))] == []
    assert code == 0


def test_standard_input_is_checked(check):
    code, said = check("-", stdin=BAD)
    assert code == 1
    assert said.startswith("stdin: refused, 2 errors\n  error   stdin:4:3: plugins[0].type: ")
    assert check("-", stdin=GOOD)[0] == 0
    code, said = check("-", stdin=b"\xff\xfe\x00")
    assert (code, said) == (1, "stdin: refused, 1 error\n  error   stdin: is UTF-16; save it as UTF-8\n")


def config_map(**texts):
    return yaml.safe_dump({"kind": "ConfigMap", "metadata": {"name": "epp"}, "data": texts}, default_style="|")


def test_directory_is_checked_and_what_is_skipped_is_told_with_the_reason(check, tmp_path):
    directory = tmp_path / "files"
    for name, text in {
        "a.yaml": GOOD,
        "b.yml": BAD,
        "c.json": json.dumps(yaml.safe_load(GOOD)),
        "d.yaml": "kind: Service\nmetadata: {name: s}\n",
        "e.yaml": "",
        "f.yaml": "kind: EndpointPickerConfig\nplugins: [",
        "g.yaml": "{",
        "h.yaml": config_map(epp=GOOD, notes="x"),
        "notes.txt": BAD,
        "below/i.yaml": BAD,
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    code, said = check("files")
    assert code == 1
    heads = [line for line in said.splitlines() if line.startswith("files/")]
    assert heads == [
        "files/a.yaml: ok",
        "files/b.yml: refused, 2 errors",
        "files/c.json: ok",
        "files/d.yaml: skipped: contains no EndpointPickerConfig, but Service s",
        "files/e.yaml: skipped: is empty",
        "files/f.yaml: refused, 1 error",
        "files/g.yaml: skipped: 1:2: is not valid YAML: a value is missing, or a bracket is not closed",
        "files/h.yaml, data[epp] of ConfigMap epp: ok",
    ]
    reports = json.loads(check("files", "--output=json")[1])
    assert [report["skipped"] is None for report in reports] == [True, True, True, False, False, True, False, True]


def test_directory_without_any_configuration_is_an_error(check, tmp_path):
    (tmp_path / "empty").mkdir()
    code, said = check("empty")
    assert code == 1
    assert "  error   empty: contains no EndpointPickerConfig in its .json, .yaml, .yml files\n" in said


def test_config_map_or_documents_with_several_configurations_are_checked_in_full(check):
    code, said = check(a=config_map(first=GOOD, second=BAD))
    assert code == 1
    assert "a.yaml, data[first] of ConfigMap epp: ok\n" in said
    assert "a.yaml, data[second] of ConfigMap epp: refused, 2 errors, 1 warning\n" in said
    assert "a second configuration, after the one in data[first] of ConfigMap epp; write the one to use" in said
    reports = json.loads(check("--output=json", a=config_map(first=GOOD, second=BAD))[1])
    assert [report["inside"] for report in reports] == [f"data[{key}] of ConfigMap epp" for key in ("first", "second")]
    assert reports[1]["errors"][0]["line"] > 1
    code, said = check(a=f"{GOOD}---\n{GOOD}")
    assert code == 1
    assert "a.yaml: ok\n" in said
    assert "a.yaml: refused, 1 error\n  error   a.yaml:5:1: a second configuration, after" in said


def test_graph_shows_deciders_and_the_parameters_that_are_no_defaults(check):
    text = """\
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: pd}, stageOrder: decode-first}}
- {type: prefix-based-pd-decider, name: pd, parameters: {nonCachedTokens: 512}}
- {type: cost-aware-spill, parameters: {queueThreshold: 5, limits: {t4: {maxConcurrency: 8}}, fallbackOnEmpty: false}}
- {type: queue-scorer, parameters: {normalizeBy: ""}}
- {type: active-request-scorer, parameters: {normalizeBy: relativeCapacity}}
- {type: probabilistic-admitter, parameters: {power: 3}}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: cost-aware-spill}, {pluginRef: queue-scorer}, {pluginRef: active-request-scorer}]
- name: prefill
"""
    code, said = check(a=HEAD + text)
    assert code == 0
    shown = [line.lstrip("│├└─ ") for line in said.splitlines()]
    for line in (
        "admission: probabilistic-admitter with {power: 3}",
        "profile picker disagg-profile-handler with {deciders: {prefill: pd}}",
        "decider pd (prefix-based-pd-decider) with {nonCachedTokens: 512}",
        "scorer queue-scorer, weight 1 (50%, Distribution) reads waiting",
        "scorer active-request-scorer, weight 1 (50%, Distribution) with {normalizeBy: relativeCapacity} reads",
        "picker max-score-picker (added: profile 'decode' names no picker)",
        "picker max-score-picker (added: profile 'prefill' names no picker)",
    ):
        assert any(each.startswith(line) for each in shown), line
    limits = "with {limits: {t4: {maxConcurrency: 8}}} reads accelerator"  # 5 is the default of queueThreshold
    assert any(limits in each for each in shown)
    graph = json.loads(check("--output=json", a=HEAD + text)[1])[0]["graph"]
    decider = {"name": "pd", "type": "prefix-based-pd-decider", "reads": ["prefix-match"]}
    assert graph["called"] == {"deciders": [decider | {"parameters": {"nonCachedTokens": 512}}]}


def test_nothing_is_cut_off_in_a_terminal_of_80_columns(check):
    _, whole = check(a=HEAD + "plugins: [{type: cost-aware-spill}]\n", b=BAD, c=WARNED)
    console = Console(width=80, force_terminal=True, highlight=False, emoji=False, color_system=None)
    with console.capture() as captured, mock.patch("epp.cli.check.new_console", return_value=console):
        check(a=HEAD + "plugins: [{type: cost-aware-spill}]\n", b=BAD, c=WARNED)
    narrow = captured.get()
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert words(narrow) == words(whole)
    error = next(i for i, line in enumerate(narrow.splitlines()) if line.startswith("  error   b.yaml:4:3: "))
    assert narrow.splitlines()[error + 1].startswith(" " * len("  error   "))


def words(text):
    """The words of a text, without the lines of trees."""
    return [word for word in text.split() if not set(word) <= set("│├└─")]


def refused(*arguments):
    result = CliRunner().invoke(application(), ["check", *arguments])
    assert result.exit_code == 1
    return result.stderr


def test_nothing_to_check_and_flags_without_effect_are_errors(tmp_path):
    assert refused() == "error: nothing to check: name a file, a directory or -, or give --cluster\n"
    said = refused(str(tmp_path), "--pool-name=p", "--as", "me", "--ha-enable-leader-election")
    assert said == "error: --as, --pool-name, --ha-enable-leader-election: no effect on files: add --cluster\n"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--as=",), "--as: '' is not the name of a user"),
        (("--as=a\nb",), "--as: 'a\\nb' is not the name of a user"),
        (("--pool-name=p", "--endpoint-selector=a=b"), "--pool-name and --endpoint-selector cannot be combined"),
        (("--endpoint-selector=a=b",), "--endpoint-target-ports is missing"),
        (("--pool-namespace=A b",), "--pool-namespace: 'A b' is not the name of a namespace"),
        (("--kubeconfig=/absent",), "no access to Kubernetes: "),
    ],
)
def test_flags_of_the_cluster_that_cannot_be_used_are_one_sentence(flags, problem):
    said = refused("--cluster", *flags)
    assert said.startswith(f"error: {problem}")
    assert said.count("\n") == 1


def test_what_is_wrong_with_the_objects_that_a_plugin_reads_is_a_warning(check, tmp_path):
    accelerator = "{apiVersion: ome.io/v1beta1, kind: AcceleratorClass, metadata: {name: %s}, spec: %s}"
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "classes.yaml").write_text(
        accelerator % ("t4", "{cost: {perHour: -3}}") + "\n---\n" + accelerator % ("l4", 7)
    )
    source = "plugins: [{type: accelerator-data-source, parameters: {paths: [objects]}}, {type: queue-scorer}]\n"
    code, said = check(a=HEAD + source)
    assert (code, said.splitlines()[0]) == (0, "a.yaml: ok, 2 warnings")
    assert "AcceleratorClass t4: spec.cost.perHour is -3: write US dollars, 0 or more; it is ignored" in said
    assert "objects/classes.yaml: AcceleratorClass l4 is skipped: spec is 7: write a mapping" in said
    assert check("--strict", a=HEAD + source)[0] == 2


IMPOSSIBLE = """
{apiVersion: tensor-fusion.ai/v1, kind: GPUPool, metadata: {name: a}, spec: {schedulingConfigTemplate: lost}}
---
{apiVersion: tensor-fusion.ai/v1, kind: GPUNode, metadata: {name: n1}, status: {virtualVRAM: -3}}
---
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: east}
spec: {taints: [{key: a, effect: Odd}]}
---
{apiVersion: cluster.open-cluster-management.io/v1beta2, kind: ManagedClusterSet, metadata: {name: set}}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: s}
spec: {acceleratorSelector: {constraints: {minMemory: -4}}}
---
{apiVersion: ome.io/v1beta1, kind: ServingRuntime, metadata: {name: vllm}}
"""


def test_what_is_wrong_with_an_object_is_said_once_by_the_plugin_that_reads_it(check, tmp_path):
    (tmp_path / "objects.yaml").write_text(IMPOSSIBLE)
    types = ("accelerator-data-source", "cluster-data-source", "accelerator-selection-producer")
    plugins = ", ".join(f"{{type: {each}, parameters: {{paths: [objects.yaml]}}}}" for each in types)
    code, said = check(a=HEAD + f"plugins: [{plugins}, {{type: queue-scorer}}]\n")
    assert code == 0
    warnings = [
        line.partition(": plugin ")[2] for line in said.splitlines() if " warning " in line and "objects.yaml" in line
    ]
    assert [line.partition(" is ")[0].replace(f"{tmp_path}/", "") for line in warnings] == [
        "'accelerator-data-source': objects.yaml: GPUNode n1: status.virtualVRAM",
        "'accelerator-data-source': objects.yaml: GPUPool a: spec.schedulingConfigTemplate",
        "'cluster-data-source': objects.yaml: ManagedCluster east: spec.taints[0].effect",
        (
            "'accelerator-selection-producer': objects.yaml: InferenceService default/s: "
            "spec.acceleratorSelector.constraints.minMemory"
        ),
    ]
    assert all(line.endswith("; it is ignored") for line in warnings)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("endpoints.yaml", "endpoints[0] (line 1): name is missing; add it"),
        ("far.yaml", "cluster_nme is unknown: did you mean 'cluster_name'?"),
        ("x" * 300, "File name too long"),
    ],
    ids=["of llm-d", "of xDS", "refused by the system"],
)
def test_ocm_14_endpoints_file_that_is_there_is_read_and_its_mistakes_are_warnings(check, tmp_path, path, said):
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: 127.0.0.1, port: 8000}]")
    (tmp_path / "far.yaml").write_text("{cluster_nme: far, endpoints: [{lb_endpoints: []}]}")
    text = f"plugins: [{{type: file-discovery, parameters: {{path: {path}}}}}]\n"
    code, shown = check(a=f"{HEAD}{text}dataLayer: {{discovery: {{pluginRef: file-discovery}}}}\n")
    assert code == 0
    assert said in " ".join(shown.split())
