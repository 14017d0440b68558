# SPDX-License-Identifier: Apache-2.0
"""All tenants at one moment, found by what requests say of them."""

from types import MappingProxyType

from epp.admission.tenants.api_keys import KeyTable, digest_of, read_digest
from epp.admission.tenants.parameters import StandingParameters, TenantsParameters
from epp.framework.messages import quoted
from epp.framework.quotas import Tenant
from epp.framework.request import DEFAULT_FLOW

NO_KEYS = KeyTable(MappingProxyType({}), MappingProxyType({}))

_MOST_REMARKS = 20


class Directory:
    """Immutable; made again where the keys of a file change."""

    def __init__(self, parameters: TenantsParameters, keys: KeyTable = NO_KEYS) -> None:
        """Index the tenants of the configuration, and those of the keys in the file."""
        self._parameters = parameters
        listed = {each.name: self._tenant(each.name, each) for each in parameters.tenants}
        unlisted = {name: self._tenant(name, parameters.default) for name in keys.lines if name not in listed}
        self._tenants = listed | unlisted
        owners = {
            digest: each.name
            for each in parameters.tenants
            for text in each.api_keys
            if (digest := read_digest(str(text))) is not None
        }
        self._by_digest = {digest: self._tenants[name] for digest, name in {**keys.tenants, **owners}.items()}
        self._by_namespace = {name: listed[each.name] for each in parameters.tenants for name in each.namespaces}
        self._by_fairness_id = {name: listed[each.name] for each in parameters.tenants for name in each.fairness_ids}
        self._unnamed = self._tenant(parameters.default.name or DEFAULT_FLOW, parameters.default)
        self.remarks = (
            *_on_unlisted(unlisted, keys),
            *_on_disputed(owners, keys),
            *_on_unknown(parameters, keys),
        )
        """Sentences on what the file says."""

    @property
    def keys(self) -> int:
        """Number of API keys."""
        return len(self._by_digest)

    def of_key(self, key: str) -> Tenant | None:
        """Return the tenant that has this API key."""
        digest = digest_of(key)
        return None if digest is None else self._by_digest.get(digest)

    def of_namespace(self, namespace: str) -> Tenant | None:
        """Return the tenant that a namespace stands for."""
        return self._by_namespace.get(namespace)

    def of_fairness_id(self, fairness_id: str) -> Tenant | None:
        """Return the tenant that a fairness id stands for."""
        return self._by_fairness_id.get(fairness_id)

    def none(self, fairness_id: str) -> Tenant:
        """Return what a request of no tenant counts as: never as one of them, whatever its fairness id."""
        if self._parameters.default.name or fairness_id in self._tenants or fairness_id == DEFAULT_FLOW:
            return self._unnamed
        return self._tenant(fairness_id, self._parameters.default)

    def _tenant(self, name: str, standing: StandingParameters) -> Tenant:
        return Tenant(
            name=name,
            priority=self._parameters.priority_of(standing),
            highest_priority=standing.highest_priority,
            qos=standing.qos or "",
        )


def _on_unlisted(unlisted: dict[str, Tenant], keys: KeyTable) -> list[str]:
    return _first(
        [
            f"line {keys.lines[name]}: its tenant is not under tenants, and so has the priority of default: add it "
            "there, or correct the name"
            for name in unlisted
        ]
    )


def _on_disputed(owners: dict[bytes, str], keys: KeyTable) -> list[str]:
    pairs = {(keys.lines[keys.tenants[digest]], owner) for digest, owner in owners.items() if digest in keys.tenants}
    return _first(
        [
            f"a key of the tenant in line {line} is under apiKeys of {quoted(owner)} too, whose it is then: remove one"
            for line, owner in sorted(pairs)
            if line != keys.lines.get(owner)
        ]
    )


def _on_unknown(parameters: TenantsParameters, keys: KeyTable) -> list[str]:
    return _first(
        [
            f"no key is of tenant {quoted(each.name)}, which nothing else stands for: add one, or fairnessIds"
            for each in parameters.tenants
            if parameters.api_key_file and each.name not in keys.lines and not each.is_known_otherwise
        ]
    )


def _first(sentences: list[str]) -> list[str]:
    more = len(sentences) - _MOST_REMARKS
    return sentences if more <= 0 else [*sentences[:_MOST_REMARKS], f"and {more} more like these"]
