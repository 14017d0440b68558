# SPDX-License-Identifier: Apache-2.0
"""The accelerator tagger: tags every endpoint with its hardware, from object files, labels and declarations."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog

from epp.accelerators.catalogue import CATALOGUE
from epp.accelerators.catalogue.gpu_catalogue import GpuCatalogueEntry, with_gpu_catalogue
from epp.accelerators.classes.faults import object_faults
from epp.accelerators.facts import Merged
from epp.accelerators.inventory import Inventory
from epp.accelerators.tag_builder import TagBuilder, TaggerOptions
from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind
from epp.framework.datalayer import FollowingTagger, KnowsAccelerators, Report
from epp.framework.durations import parse_duration
from epp.framework.endpoint import Endpoint
from epp.framework.inputs import InputState
from epp.framework.lists_in_files import read_list
from epp.framework.snapshot import ACCELERATOR
from epp.objects.decode import ALL_KINDS
from epp.objects.files.last_good import ObjectVersions
from epp.objects.files.source import ObjectSource
from epp.objects.inference import INFERENCE_KINDS

_MAX_ENDPOINT_WARNINGS = 100
"""Warnings on endpoints that are logged for one version of the objects; large pools could flood the log."""

_log = structlog.get_logger()


class AcceleratorTaggerParameters(TaggerOptions, frozen=True):
    """Object files, and trust in sources."""

    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects of a cluster: AcceleratorClass, Node, Pod,
    Instaslice, NodeAccelerator, AllocationClaim, GPU, GPUNode, ResourceSlice, ResourceClaim, DeviceClass,
    DeviceTaintRule, ResourceFlavor, VariantAutoscaling and cost ConfigMaps. A file can have several documents."""
    watch_files: bool = True
    """Apply new versions of the files as soon as they are written, all at once."""
    missing_file_grace_period: str = "5m"
    """Time for which the objects of a missing or empty file stay in effect: `0s` removes them at once. The default is
    the time after which Kubernetes evicts the pods of an unreachable node."""
    gpu_catalogue: str = ""
    """File with a GPU catalogue in the format of TensorFusion: a list of `{model, fullModelName, vendor, costPerHour,
    fp16TFlops, partitionTemplates}`, which sets prices, TFLOPS and partitions of products, and adds products. Read with
    the configuration, not watched."""
    defaults: AcceleratorDeclaration | None = None
    """Accelerator of endpoints that have no known hardware."""

    def __post_init__(self) -> None:
        """Check the duration; raises ValueError."""
        try:
            parse_duration(self.missing_file_grace_period)
        except ValueError as error:
            raise ValueError(f"missingFileGracePeriod: {error}") from None


class _Objects(NamedTuple):
    """Versions of the objects in the files, and the inventory of them."""

    versions: ObjectVersions
    inventory: Inventory


class AcceleratorTagger(FollowingTagger[AcceleratorTaggerParameters], KnowsAccelerators[AcceleratorTaggerParameters]):
    """Merges the facts of all sources on an endpoint's hardware into its accelerator tag, field by field.

    Precedence: `overrides` and the endpoint list's own `accelerator`; the class named by a trusted pod; claims (DRA,
    then InstaSlice, then TensorFusion); the matching AcceleratorClass; labels of the node; resource requests of the
    pod; built-in tables of products and machine types. Labels of an endpoint without a known pod count as labels of its
    node.

    An invalid version of a file or of an object changes nothing: the previous version stays in effect, and the log,
    `/healthz` and `llm_d_epp_input_problems` have the reason. Without a previous version, the object is skipped. The
    objects of a missing file are kept for `missingFileGracePeriod`.
    """

    plugin_type = "accelerator-data-source"
    writes = (ACCELERATOR,)

    def setup(self) -> None:
        """Read the files for the first time; raises ConfigurationError or ValueError for an invalid path."""
        self.inventory = Inventory()
        """Inventory of the objects in effect."""
        self._source = ObjectSource(
            self.parameters.paths,
            owner=self.name,
            setting="paths",
            grace_period=self.parameters.missing_file_grace_period,
            kinds=ALL_KINDS - INFERENCE_KINDS,
            judge=object_faults,
        )
        path = self.parameters.gpu_catalogue
        entries = read_list("gpuCatalogue", path, GpuCatalogueEntry) if path else ()
        self._catalogue = with_gpu_catalogue(entries) if entries else CATALOGUE
        self._builder = TagBuilder(self.inventory, self.parameters, self._catalogue)
        self._endpoint_problems: set[str] = set()
        if (objects := self._read()) is not None:
            self._apply(objects)

    @property
    def inputs(self) -> InputState:
        """Files, and the versions of them that are not in effect."""
        return self._source.inputs

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the tag; log each problem of endpoints once for each version of the objects."""
        merged = self.merged(endpoint)
        for problem in (*merged.conflicts, *merged.warnings):
            if problem not in self._endpoint_problems and len(self._endpoint_problems) < _MAX_ENDPOINT_WARNINGS:
                self._endpoint_problems.add(problem)
                _log.warning("endpoint accelerator problem", plugin=self.name, endpoint=endpoint.id, problem=problem)
        return Report(attributes={ACCELERATOR: merged.tag})

    def merged(self, endpoint: Endpoint) -> Merged:
        """Return the tag, and the problems of its sources."""
        merged = self._builder.build(endpoint)
        defaults = self.parameters.defaults
        if merged.tag.kind is not AcceleratorKind.UNKNOWN or defaults is None or endpoint.accelerator is not None:
            return merged
        assumed = self._builder.build(dataclasses.replace(endpoint, accelerator=defaults))
        provenance = {
            field: "defaults" if source == "endpoint list" else source
            for field, source in assumed.tag.provenance.items()
        }
        return msgspec.structs.replace(assumed, tag=msgspec.structs.replace(assumed.tag, provenance=provenance))

    def knows(self, name: str) -> bool:
        """Return whether there is an AcceleratorClass, or a product of the catalogue, with this name."""
        classes = {known.lower() for known in self.inventory.classes}
        return name.lower() in classes or self._catalogue.find(name) is not None

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Apply new versions of the files until cancelled."""
        if not (self.parameters.paths and self.parameters.watch_files):
            return
        async for _ in self._source.changes():
            if await self.look():
                await changed()

    async def look(self) -> bool:
        """Read the files; return whether any of them, or its objects in effect, changed."""
        objects = await asyncio.to_thread(self._read)
        if objects is None:
            return False
        self._apply(objects)
        _log.info("accelerator objects updated", plugin=self.name, problems=len(self.inventory.problems))
        return True

    def _read(self) -> _Objects | None:
        """Return the objects in the files; None if nothing changed. Runs in a thread, so it changes no state."""
        versions = self._source.read(self.clock.now())
        if versions is None:
            return None
        return _Objects(versions, Inventory.build(self._source.in_order(versions), self.inventory))

    def _apply(self, objects: _Objects) -> None:
        versions, self.inventory = objects
        self._builder = TagBuilder(self.inventory, self.parameters, self._catalogue)
        self._source.apply(versions, self.inventory.problems)
        self._endpoint_problems.clear()
