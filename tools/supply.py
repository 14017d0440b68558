# SPDX-License-Identifier: Apache-2.0
"""The packages of an installation: a bill of materials in CycloneDX, and whether their licences are allowed."""

import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from generate import PROJECT, REPOSITORY, dependencies, licence_of
from license_expression import ExpressionError, get_spdx_licensing
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = ("run.txt", "image.txt")
"""What an installation takes, on a machine and in the container image."""
BILLS = {"sbom.cdx.json": LOCKS, "image.cdx.json": LOCKS[1:]}
"""Each file in `dist/`, and the locks whose packages it lists."""
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",  # of single files, which nobody changes here
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
_LOCKED = re.compile(
    r"^(?P<package>[\w.-]+==\S+(?: ;[^\\\n]+)?)(?P<hashes>(?: \\\n {4}--hash=sha256:\w+)+)", re.MULTILINE
)


class Locked(NamedTuple):
    """A package of a lock file, for this platform."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file that may be installed."""


def locked(locks: Sequence[str] = LOCKS) -> dict[str, Locked]:
    """Return the packages of lock files, by name."""
    found = {}
    for lock in locks:
        for match in _LOCKED.finditer((REPOSITORY / ".lock" / lock).read_text(encoding="utf-8")):
            requirement = Requirement(match["package"])
            if requirement.marker is None or requirement.marker.evaluate():
                (version,) = requirement.specifier
                hashes = tuple(re.findall(r"sha256:(\w+)", match["hashes"]))
                name = canonicalize_name(requirement.name)
                found[name] = Locked(name, version.version, hashes)
    return dict(sorted(found.items()))


def bill_of_materials(locks: Sequence[str] = LOCKS) -> str:
    """Return the bill of materials as JSON, the same for the same lock files; raises ValueError for an invalid one."""
    packages, needed = locked(locks), dependencies()
    components = {each.name: _component(each, is_needed=each.name in needed) for each in packages.values()}
    licence = LicenseFactory().make_from_string(licence_of(PROJECT))
    version = metadata.version(PROJECT)
    root = Component(type=ComponentType.APPLICATION, name=PROJECT, version=version, bom_ref=PROJECT, licenses=[licence])
    bom = Bom(components=components.values())
    bom.metadata.component = root
    bom.metadata.timestamp = None  # type: ignore[assignment]  # of no lock file
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, repr((version, packages)))
    direct = {canonicalize_name(Requirement(each).name) for each in metadata.requires(PROJECT) or ()}
    bom.register_dependency(root, [component for name, component in components.items() if name in direct])
    for name, component in components.items():
        bom.register_dependency(component, [components[each] for each in _needed_by(name) if each in components])
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials does not fit its schema: {fault}")
    return text


def forbidden_licences() -> Iterator[str]:
    """Yield a sentence on each package whose licence is not allowed."""
    for name in locked():
        said = licence_of(name)
        if not is_allowed(said):
            yield f"{name}: its licence is {said!r}: take another package, or allow it in tools/supply.py"


def is_allowed(expression: str) -> bool:
    """Return whether a licence is allowed: of an expression with OR, one suffices."""
    try:
        parsed = get_spdx_licensing().parse(expression, validate=True)
    except ExpressionError:
        return False
    return parsed is not None and _is_allowed(parsed)


def _is_allowed(parsed: object) -> bool:
    args, operator = getattr(parsed, "args", ()), str(getattr(parsed, "operator", "")).strip()
    if args and operator in {"AND", "OR"}:
        combined = all if operator == "AND" else any
        return combined(map(_is_allowed, args))
    return str(parsed) in ALLOWED


def _component(package: Locked, *, is_needed: bool) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in package.hashes]
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=f"{package.name}=={package.version}",
        purl=PackageURL("pypi", None, package.name, package.version),
        scope=ComponentScope.REQUIRED if is_needed else ComponentScope.EXCLUDED,  # the others only build it
        licenses=[LicenseFactory().make_from_string(licence_of(package.name))],
        hashes=hashes,
    )


def _needed_by(name: str) -> Iterator[str]:
    """Yield the packages that this one needs here, also those for one of its extras."""
    extras = ("", *(metadata.metadata(name).get_all("Provides-Extra") or ()))
    for requirement in map(Requirement, metadata.requires(name) or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(requirement.name)


def main() -> None:
    """Write the bills into `dist/`; exit with 1 for a licence that is not allowed."""
    for name, locks in BILLS.items():
        target = REPOSITORY / "dist" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(bill_of_materials(locks), encoding="utf-8")
        print(f"{target.relative_to(REPOSITORY)}: {len(locked(locks))} packages")  # noqa: T201  the report
    if found := list(forbidden_licences()):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
