# SPDX-License-Identifier: Apache-2.0
"""Metrics of shadow profiles."""

from collections.abc import Collection

from prometheus_client.registry import CollectorRegistry

from epp.explain.shadow import Compared, Outcome
from epp.telemetry.families import Counters, Gauges, Histograms

SHADOW, REAL = "shadow", "real"
_MOST_ACCELERATORS = 64
"""Names of accelerators that metrics tell apart."""
_OTHER = "other"
_GAPS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)


class ShadowSeries:
    """Written by the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of_profile = ("profile",)
        self._runs = Counters(
            "llm_d_epp_shadow_runs",
            "Runs of shadow profiles by outcome: agrees, ties (another endpoint, which scores the same), "
            "differs, refused (its filters left none), failed or timeout.",
            ("profile", "outcome"),
            registry,
        )
        self._gap = Histograms(
            "llm_d_epp_shadow_score_gap",
            "How much higher the pick of a shadow profile scores than the real one, by its own scorers, where the "
            "real one passes its filters; 0 where it does not.",
            of_profile,
            _GAPS,
            registry,
        )
        self._seconds = Histograms(
            "llm_d_epp_shadow_duration_seconds",
            "Time that a shadow profile took for a request.",
            of_profile,
            _SECONDS,
            registry,
        )
        self._picks = Counters(
            "llm_d_epp_shadow_picks",
            "Picks by accelerator class, or else model: those of a shadow profile, and the real ones of the same "
            "requests.",
            ("profile", "by", "accelerator"),
            registry,
        )
        self._dollars = Counters(
            "llm_d_epp_shadow_cost_per_hour_dollars",
            "Sum of the dollars an hour of the endpoints picked, where both have a price: by a shadow profile, and the "
            "real ones of the same requests.",
            ("profile", "by"),
            registry,
        )
        self._priced = Counters("llm_d_epp_shadow_priced_picks", "Picks in each of these sums.", of_profile, registry)
        self._failures = Counters(
            "llm_d_epp_shadow_plugin_failures",
            "Calls of plugins of shadow profiles that raised.",
            ("profile", "plugin"),
            registry,
        )
        self.skipped = Counters(
            "llm_d_epp_shadow_skipped",
            "Sampled requests without shadows: queue, too many waited; bytes, their bodies were too large together; "
            "reload, the configuration changed; disabled, all were.",
            ("reason",),
            registry,
        )
        self._disabled = Gauges(
            "llm_d_epp_shadow_disabled",
            "1 for a shadow profile that took too much time or memory.",
            of_profile,
            registry,
        )
        self.waiting = Gauges("llm_d_epp_shadow_queue_size", "Requests that wait for their shadows.", (), registry)
        self._accelerators: set[str] = set()

    def keep(self, profiles: Collection[str]) -> None:
        """Show these profiles, each of them enabled, and no others."""
        for family in (self._runs, self._gap, self._seconds, self._picks, self._dollars, self._priced, self._failures):
            for values in family.values():
                if values[0] not in profiles:
                    family.remove(*values)
        self._disabled.clear()
        for profile in profiles:
            self._disabled.labels(profile).set(0)
            for outcome in Outcome:
                self._runs.labels(profile, outcome.value)

    def add(self, compared: Compared) -> None:
        """Count a run."""
        run = compared.run
        name = run.profile
        self._runs.labels(name, compared.outcome.value).inc()
        self._seconds.labels(name).observe(run.seconds)
        if not run.endpoint:
            return
        if run.score_gap is not None:
            self._gap.labels(name).observe(max(run.score_gap, 0.0))
        self._picks.labels(name, SHADOW, self._named(run.accelerator)).inc()
        self._picks.labels(name, REAL, self._named(compared.real_accelerator)).inc()
        if run.cost_per_hour is not None and compared.real_cost is not None:
            self._dollars.labels(name, SHADOW).inc(run.cost_per_hour)
            self._dollars.labels(name, REAL).inc(compared.real_cost)
            self._priced.labels(name).inc()

    def failed(self, profile: str, plugin: str) -> None:
        """Count a plugin that raised."""
        self._failures.labels(profile, plugin).inc()

    def disabled(self, profile: str) -> None:
        """Show that a profile does not run any more."""
        self._disabled.labels(profile).set(1)

    def _named(self, accelerator: str) -> str:
        if accelerator not in self._accelerators:
            if len(self._accelerators) >= _MOST_ACCELERATORS:
                return _OTHER
            self._accelerators.add(accelerator)
        return accelerator or "unknown"
