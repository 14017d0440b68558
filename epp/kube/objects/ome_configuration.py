# SPDX-License-Identifier: Apache-2.0
"""The configuration of a runtime for each accelerator class, which tells OME how to start servers."""

from collections.abc import Iterator, Mapping

from epp.framework.messages import printable

_SIZES = ("tensorParallelSize", "pipelineParallelSize", "dataParallelSize")
_MOST_CHARACTERS = 60


def configuration_faults(configuration: Mapping[str, object], place: str) -> Iterator[str]:
    """Yield the values that cannot be true, and the bounds that have no effect here: field, value and remedy of each.

    Devices are counted as pods have them, whatever parallelism their servers were started with.
    """
    spelled: dict[str, str] = {}
    for name, values in configuration.items():
        where = f"{place}[{printable(name, _MOST_CHARACTERS)}]"
        first = spelled.setdefault(name.lower(), name)
        if first != name:
            yield f"{where} is the same class as {printable(first, _MOST_CHARACTERS)!r}: write it once"
        if not isinstance(values, Mapping):
            yield f"{where} is {_shown(values)}: write a mapping"
            continue
        yield from _faults_of_class(values, where)


def _faults_of_class(values: Mapping[str, object], place: str) -> Iterator[str]:
    least = values.get("minMemoryPerBillionParams")
    if least is not None:
        remedy = "write what the model needs as spec.acceleratorRequirements.minMemory"
        yield f"{place}.minMemoryPerBillionParams is {_shown(least)}, and bounds no request: {remedy}"
    parallel = values.get("tensorParallelismOverride")
    if parallel is None:
        return
    if not isinstance(parallel, Mapping):
        yield f"{place}.tensorParallelismOverride is {_shown(parallel)}: write a mapping"
        return
    for size in _SIZES:
        value = parallel.get(size)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            where = f"{place}.tensorParallelismOverride.{size}"
            yield f"{where} is {_shown(value)}: write a whole number of at least 1"


def _shown(value: object) -> str:
    return printable(f"{value!r}", _MOST_CHARACTERS)
