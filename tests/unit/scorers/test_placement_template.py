# SPDX-License-Identifier: Apache-2.0
"""Scores by the placement mode of a template."""

import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.accelerators.arrays import PLACEMENT, EndpointPlacement, PlacementMode, PlacementTemplate
from epp.framework.accelerators.tag import TFLOPS_USED, VRAM_USED, AcceleratorTag
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp_scorers.gpu_packing import PlacementTemplateScorer

TEMPLATES = {
    name: PlacementTemplate(name=name, mode=mode)
    for name, mode in (
        ("packed", PlacementMode.COMPACT_FIRST),
        ("spread", PlacementMode.LOW_LOAD_FIRST),
        ("nodes", PlacementMode.NODE_COMPACT),
    )
}


def scored(build, *own, **parameters):
    """Scores of endpoints with a fourth of everything used, by the names of their pools' templates."""
    tags = [AcceleratorTag(attributes={VRAM_USED: 0.25, TFLOPS_USED: 0.25})] * len(own)
    records = {ACCELERATOR: tags, PLACEMENT: [EndpointPlacement(own=name, templates=TEMPLATES) for name in own]}
    return build(PlacementTemplateScorer, **parameters).score(Request("r"), candidates(records=records)).tolist()


NODES = (2 + 0.99 * 0.75) / 9.99  # band 2 of 10


def test_tf_1_each_endpoint_is_scored_by_the_mode_of_its_pool(build):
    assert scored(build, "packed", "spread", "nodes") == pytest.approx([0.25, 0.75, NODES])


@pytest.mark.parametrize(("template", "score"), [("packed", 0.25), ("spread", 0.75), ("nodes", NODES)])
def test_tf_1_template_may_be_named(build, template, score):
    assert scored(build, "packed", "spread", "", template=template) == pytest.approx([score] * 3)


def test_tf_1_default_mode_counts_without_a_template(build):
    assert scored(build, "", "lost") == pytest.approx([NODES] * 2)
    assert scored(build, "", "lost", defaultMode="CompactFirst") == pytest.approx([0.25] * 2)
    assert scored(build, "packed", template="lost", defaultMode="LowLoadFirst") == pytest.approx([0.75])


def test_tf_1_weights_and_bands_are_those_of_the_modes(build):
    assert scored(build, "nodes", bands=1) == pytest.approx([0.75])
    with pytest.raises(ConfigurationError, match="all 0"):
        scored(build, "nodes", vramWeight=0, tflopsWeight=0)


def test_tf_1_mode_that_there_is_not_is_refused(build):
    with pytest.raises(ConfigurationError, match="'Tetris' is not known"):
        scored(build, "nodes", defaultMode="Tetris")
