# SPDX-License-Identifier: Apache-2.0
"""Quotas of namespaces: shown, and said where they are wrong."""

import pytest
import yaml

from epp.hardware.tagger import AcceleratorTagger
from epp.hardware.tensor_fusion import QuotaLine, quota_reports
from tests.support.kube.manifests import manifest
from tests.support.plugins import built

GIB = 2**30


def quota(used=None, *, name="quota", namespace="team-a", **total):
    return manifest(
        "tensor-fusion.ai/v1", "GPUResourceQuota", name, namespace, spec={"total": total}, status={"used": used or {}}
    )


@pytest.fixture
def reports(inventory_of):
    """Reports and ignored values of quotas."""

    def found(*quotas):
        inventory = inventory_of(quotas)
        return quota_reports(inventory.gpu_quotas.values()), tuple(map(str, inventory.ignored))

    return found


def test_tf_1_limits_and_use_of_the_sample(documents, inventory_of):
    (report,) = quota_reports(inventory_of(documents("tensor-fusion")).gpu_quotas.values())
    assert (report.namespace, report.name, report.alert_threshold_percent) == ("team-a", "quota", 90)
    assert report.total == {
        "requests.tflops": QuotaLine(limit=500, used=310),
        "requests.vram": QuotaLine(limit=200 * GIB, used=120 * GIB),
        "limits.tflops": QuotaLine(limit=800, used=400),
        "limits.vram": QuotaLine(limit=240 * GIB, used=140 * GIB),
        "workers": QuotaLine(limit=20, used=7),
    }
    assert report.single == {"maxRequests.tflops": 200, "maxRequests.vram": 80 * GIB, "maxGPUCount": 4}


@pytest.mark.parametrize(("workers", "alert"), [(17, False), (18, False), (19, True), (25, True)])
def test_tf_1_alert_where_less_is_left_than_the_threshold_allows(reports, workers, alert):
    # a threshold of 90 % leaves 10 % of 20: 2 workers
    (report,), _ = reports(quota({"workers": workers}, maxWorkers=20, alertThresholdPercent=90))
    assert report.total["workers"] == QuotaLine(limit=20, used=workers, alert=alert)


def test_tf_1_limit_of_0_is_none_and_unknown_use_is_no_alert(reports):
    (report,), problems = reports(quota(maxWorkers=0, requests={"tflops": "10"}))
    assert report.total == {"requests.tflops": QuotaLine(limit=10)}
    assert problems == ()


def test_tf_1_impossible_values_are_said_and_ignored(reports):
    bad = quota({"workers": -1}, maxWorkers=4, alertThresholdPercent=900, limits={"tflops": "-3"})
    (report,), problems = reports(bad)
    assert report.total == {"workers": QuotaLine(limit=4)}
    assert report.alert_threshold_percent == 95
    assert [each.removeprefix("test: GPUResourceQuota team-a/quota: ") for each in problems] == [
        "spec.total.limits.tflops is -3: write TFLOPS of 0 or more; it is ignored",
        (
            "spec.total.alertThresholdPercent is 900, more than 100: write 0 to 100 in place of the "
            "default, 95; it is ignored"
        ),
        "status.used.workers is -1: write a whole number of 0 or more; it is ignored",
    ]


def test_tf_1_quotas_are_metrics_of_bounded_number(tmp_path):
    many = [quota({"workers": 4}, maxWorkers=4, namespace=f"team-{i:03}") for i in range(120)]
    (tmp_path / "quotas.yaml").write_text(yaml.safe_dump_all(many))
    samples = built(AcceleratorTagger, {"paths": [str(tmp_path)]}).samples
    samples = {(each.metric.name, *each.labels): each.value for each in samples}
    assert len(samples) == 300
    labels = ("team-000", "quota", "workers")
    assert samples["gpu_quota_limit", *labels] == samples["gpu_quota_used", *labels] == 4
    assert samples["gpu_quota_alert", *labels] == 1
