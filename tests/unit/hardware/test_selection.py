# SPDX-License-Identifier: Apache-2.0
import pytest
from structlog.testing import capture_logs

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, Request, RequestBody
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION
from epp.framework.clock import ManualClock
from epp.framework.errors import AdmissionDeniedError, BadRequestError, ConfigurationError
from epp.framework.registry import Registry
from epp.framework.testing import candidates
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.routing.datastore import Datastore
from epp.routing.director import Director, Runtime
from tests.support.hardware_objects import GIB
from tests.support.plugins import built

POOL = candidates(labels=[{}])


def build(**parameters):
    return built(AcceleratorSelectionProducer, parameters)


def select(plugin, model="m", **asked):
    fields = [(f"x-epp-accelerator-{name.replace('_', '-')}", value) for name, value in asked.items()]
    request = Request("r", RequestBody(model=model), Headers(fields))
    plugin.produce(request, POOL)
    plugin.admit(request, POOL)
    return request.get(ACCELERATOR_SELECTION)


LAYERS = {
    "defaults": {"acceleratorClasses": ["t4", "a100"], "minMemory": 16, "excludedClasses": ["k80"], "policy": "cost"},
    "models": {
        "big": {"acceleratorClasses": ["h100", "a100"], "minMemory": 80},
        "llama-*": {"minMemory": "8Gi", "excludedClasses": ["t4"]},
        "llama-3*": {"vendors": ["amd"]},
    },
    "components": {"prefill": {"policy": "MostCapable", "minMemory": 40}, "decode": {"acceleratorClasses": ["l4"]}},
}


@pytest.mark.parametrize(
    ("model", "profile", "expected"),
    [
        # defaults hold where no other layer speaks
        ("m", "default", {"classes": ("t4", "a100"), "min_memory_bytes": 16 * GIB, "excluded_classes": {"k80"}}),
        ("m", "default", {"policy": "cheapest"}),
        # the layer of a model replaces lists and adds to bounds
        ("big", "another", {"classes": ("h100", "a100"), "min_memory_bytes": 80 * GIB, "excluded_classes": {"k80"}}),
        # the first pattern that matches counts, and cannot loosen
        ("llama-3-8b", "", {"min_memory_bytes": 16 * GIB, "excluded_classes": {"k80", "t4"}, "vendors": ()}),
        # the layer of a component goes above that of the model
        ("big", "prefill", {"policy": "most-capable", "min_memory_bytes": 80 * GIB}),
        ("big", "decode", {"classes": ("l4",)}),
    ],
)
def test_ome_5_layers_of_defaults_models_and_components(model, profile, expected):
    found = select(build(**LAYERS), model=model).of(profile)
    assert {name: getattr(found, name) for name in expected} == expected


def test_ome_5_headers_are_not_looked_at_unless_allowed():
    assert select(build(), min_memory="lots") == select(build())


def test_ome_5_headers_tighten_every_profile():
    plugin = build(**LAYERS, allowRequestOverrides=True)
    asked = {"min_memory": "24Gi", "exclude_class": "t4, v100", "features": "FP8"}
    found = select(plugin, **asked, max_cost_per_hour="3.5", policy="FirstAvailable")
    assert found.default.min_memory_bytes == 24 * GIB
    assert found.of("prefill").min_memory_bytes == 40 * GIB
    assert found.default.excluded_classes == {"k80", "t4", "v100"}
    assert found.default.required_features == {"fp8"}
    assert found.of("decode").max_endpoint_cost_per_hour == 3.5
    assert found.default.policy == "first-available"
    assert found.warnings == ()


OUTSIDE = "header 'x-epp-accelerator-class' asks for h100, which is not allowed: use t4, a100"
EXCLUDED = "header 'x-epp-accelerator-class' asks for k80, which is not allowed"


@pytest.mark.parametrize(
    ("defaults", "asked", "message", "classes"),
    [(LAYERS["defaults"], "h100", OUTSIDE, ("t4", "a100")), ({"excludedClasses": ["k80"]}, "k80", EXCLUDED, ())],
    ids=["outside of the allow-list", "excluded"],
)
def test_ome_5_class_that_is_not_allowed_is_a_bad_request_if_strict_and_ignored_with_a_warning_if_lenient(
    defaults, asked, message, classes
):
    strict = build(defaults=defaults, allowRequestOverrides=True)
    with pytest.raises(BadRequestError, match=f"{message}$") as refused:
        select(strict, **{"class": f"a100,{asked}"})
    assert refused.value.status == 400
    assert select(strict, **{"class": "A100"}).default.classes == ("a100",)
    found = select(build(defaults=defaults, allowRequestOverrides=True, requestOverrides="lenient"), **{"class": asked})
    assert (found.default.classes, found.warnings) == (classes, (message,))


def test_ome_5_lenient_an_excluded_class_is_ignored_and_logged_but_not_for_every_request():
    plugin = build(defaults={"excludedClasses": ["k80"]}, allowRequestOverrides=True, requestOverrides="lenient")
    with capture_logs() as logs:
        found = [select(plugin, **{"class": "k80"}) for _ in range(5)]
    assert found[0].default.classes == ()
    (line,) = logs
    assert line["problems"] == [EXCLUDED]


def test_ome_5_strict_a_component_that_does_not_allow_it_is_named():
    plugin = build(components={"decode": {"vendors": ["amd"]}}, allowRequestOverrides=True)
    with pytest.raises(BadRequestError, match="asks for nvidia, which is not allowed in profile 'decode': use amd"):
        select(plugin, vendor="nvidia")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"min_memory": "lots"}, "header 'x-epp-accelerator-min-memory': 'lots' is not a quantity: write 0 or more"),
        ({"max_cost_per_hour": "cheap"}, "header 'x-epp-accelerator-max-cost-per-hour': 'cheap' is not a number"),
        ({"max_cost_per_hour": "nan"}, "accelerator-max-cost-per-hour': it is nan; it must be 0 or more, and finite"),
        ({"min_compute_slices": "1.5"}, "is not a whole number"),
        ({"whole_device": "maybe"}, "is neither true nor false"),
        ({"kind": "abacus"}, "'x-epp-accelerator-kind': it has 'abacus'; use gpu"),
        ({"vender": "amd"}, "'x-epp-accelerator-vender' is not known; did you mean 'x-epp-accelerator-vendor'"),
    ],
)
def test_ome_5_strict_a_header_that_cannot_be_read_is_a_bad_request_and_lenient_ignores_it(asked, message):
    with pytest.raises(BadRequestError, match=message):
        select(build(allowRequestOverrides=True), **asked)
    found = select(build(allowRequestOverrides=True, requestOverrides="lenient"), **asked)
    assert found.default == select(build()).default
    assert len(found.warnings) == 1


def test_is_6_gie_13_slices_kinds_and_vendors_can_be_asked_for_in_headers():
    profiles = {"mig_profile": "nvidia.com/mig-3g.20gb", "exclude_mig_profile": "1g.5gb+me"}
    slices = {**profiles, "min_compute_slices": "2", "whole_device": "false"}
    found = select(build(allowRequestOverrides=True), kind="gpu", vendor="nvidia", **slices).default
    assert (found.kinds, found.vendors) == (("gpu",), ("nvidia",))
    assert found.mig_profiles == ("3g.20gb",)
    assert found.excluded_mig_profiles == {"1g.5gb+me"}
    assert found.min_compute_slices == 2
    assert not found.whole_device_only


def test_ome_5_several_values_of_one_header_add_up():
    request = Request(
        "r", headers=Headers([("x-epp-accelerator-class", "a"), ("X-Epp-Accelerator-Class", "b"), ("x-other", "c")])
    )
    build(allowRequestOverrides=True).produce(request, POOL)
    assert request.get(ACCELERATOR_SELECTION).default.classes == ("a", "b")


CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: accelerator-selection-producer
    parameters: {defaults: {vendors: [nvidia]}, allowRequestOverrides: true}
"""


def test_ome_5_the_caller_of_the_picker_gets_the_400():
    registry, clock = Registry(), ManualClock()
    registry.register(AcceleratorSelectionProducer)
    store = Datastore(clock)
    store.replace([Endpoint("a", "10.0.0.1", 8000)])
    director = Director(Runtime(store, clock), assemble(load_text(CONFIG), Builder(registry, clock)).pipeline)
    body = b'{"model": "m", "prompt": "hi"}'
    headers = [(":path", "/v1/completions")]
    assert director.route(Headers([*headers, ("x-epp-accelerator-vendor", "NVIDIA")]), body, None).result.targets
    with pytest.raises(AdmissionDeniedError, match="header 'x-epp-accelerator-vendor' asks for amd") as refused:
        director.route(Headers([*headers, ("x-epp-accelerator-vendor", "amd")]), body, None)
    assert (refused.value.status, refused.value.code) == (400, "BadRequest")


def test_ome_5_bad_layers_are_refused_at_load():
    with pytest.raises(ConfigurationError, match="minMemory: 'x' is not a quantity"):
        build(models={"m": {"minMemory": "x"}})
    with pytest.raises(ConfigurationError, match="fallbackOnEmpty is for filters: set it on accelerator-filter"):
        build(defaults={"fallbackOnEmpty": True})
