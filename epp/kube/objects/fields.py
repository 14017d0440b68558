# SPDX-License-Identifier: Apache-2.0
"""Fields of objects that are neither read nor known from the API of their kind: misspelt ones, mostly."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TypeAlias

import yaml

from epp.framework.input_errors import with_step
from epp.framework.messages import hint_at, nearest, printable

_MOST = 20
"""Maximum number of unknown fields reported of one object."""
_MOST_CHARACTERS = 200
_OTHERS = "*"
_TABLE = "data/fields.yaml"

Fields: TypeAlias = Mapping[str, "Fields | None"]
"""Known fields; those without fields of their own may have any value."""

_METADATA: Fields = dict.fromkeys(
    (
        *("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "selfLink", "clusterName"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
        *("ownerReferences", "finalizers", "managedFields"),
    )
)


@cache
def known_fields() -> Mapping[str, Fields]:
    """Return the fields of objects by `group/kind`."""
    specs = yaml.safe_load((files("epp.kube.objects") / _TABLE).read_text("utf-8"))
    root: dict[str, Fields | None] = {"apiVersion": None, "kind": None, "metadata": _METADATA, "status": None}
    return {kind: {**root, "spec": fields} for kind, fields in specs.items()}


def unknown_fields(document: Mapping[str, object], kind: tuple[str, str]) -> tuple[str, ...]:
    """Return a sentence for each unknown field, at most 20: `spec.cost.hourly is unknown: did you mean 'perHour'?`.

    Empty for kinds that are not checked, which `data/fields.yaml` leaves out. Entries of a list have one path.
    """
    fields = known_fields().get("/".join(kind))
    return () if fields is None else tuple(dict.fromkeys(islice(unknown_within(document, fields), _MOST)))


def unknown_within(value: object, fields: Fields, place: str = "") -> Iterator[str]:
    """Yield a sentence for each field that is not among the known ones, with its path."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from unknown_within(each, fields, f"{place}[]")
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        name, others = str(key), fields.get(_OTHERS)
        known = fields.get(name, others)
        if known is not None:
            yield from unknown_within(inner, known, with_step(place, name))
        if name in fields or others is not None:
            continue
        names = fields.keys() - {_OTHERS}
        is_open = _OTHERS in fields
        if not is_open or nearest(name, names) is not None:
            yield printable(f"{with_step(place, name)} is unknown: {hint_at(name, names)}", _MOST_CHARACTERS)
