"""Facts about an installation or a job, with which the conditions of problems are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ascend_adapt import probe
from ascend_adapt.problems.problem import Condition
from ascend_adapt.problems.reading import Place, Reading

# Formats in which collect_env, `llamafactory-cli env`, `pip list` and `pip freeze` print versions.
_PRINTED = re.compile(
    r"(?m)^[\s*|-]*`?(torch[-_]npu|torch|PyTorch|transformers|accelerate|peft|trl|deepspeed|vllm[-_]ascend|vllm|ms[-_]swift"
    r"|triton[-_]ascend|triton|bitsandbytes|verl|mindspeed|megatron[-_]core|numpy|CANN)`?"
    r"(?:\s+[Vv]ersion)?(?:\s*(?:==?|:)\s*|\s{2,})v?(\d+(?:\.\w+)+)"
)

_CREDENTIALS = re.compile(r"//[^/@\s]+@")


@dataclass(frozen=True)
class Facts:
    """Facts about one host, or facts found in a log.

    Attributes:
        versions: distributions by canonical name.
        environ: the environment of the job, or None if unknown.
        device: device kind of the job, or "" if unknown.
        reading: what the user's files request, or None without files.
        is_complete: whether a distribution that is not in ``versions`` is not installed.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] | None = None
    device: str = ""
    reading: Reading | None = None
    is_complete: bool = False

    def version(self, distribution: str) -> str | None:
        """Return the version of a distribution, or None."""
        return self.versions.get(canonicalize_name(distribution))

    def known_false(self, condition: Condition) -> bool:
        """Return whether a known fact contradicts the condition."""
        return any(state is False for state in self._states(condition))

    def known_true(self, condition: Condition) -> bool:
        """Return whether the entire condition is known to hold."""
        return all(state is True for state in self._states(condition))

    def _states(self, condition: Condition) -> Iterable[bool | None]:
        """Yield for each part of the condition whether it holds, or None if unknown."""
        if condition.device:
            yield self.device in condition.device if self.device else None
        for requirement in condition.versions:
            yield self._meets(requirement)
        for name in condition.missing:
            yield False if self.version(name) else True if self.is_complete else None
        for name, pattern in (condition.environ or {}).items():
            yield None if self.environ is None else bool(pattern.fullmatch(self.environ.get(name, "")))
        for name in condition.unset:
            yield None if self.environ is None else not self.environ.get(name)
        if condition.reads_files:
            yield None if self.reading is None else bool(self.reading.places(condition))

    def _meets(self, requirement: Requirement) -> bool | None:
        version = self.version(requirement.name)
        if version is None:
            return False if self.is_complete else None
        try:
            return requirement.specifier.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return None

    def evidence_of(self, condition: Condition) -> list[str]:
        """Return descriptions of the facts on which the condition depends: versions, variables, and lines of files."""
        found = [str(place) for place in self._places(condition)]
        versions = [f"{one.name} {self.version(one.name)}" for one in condition.versions]
        found += [" with ".join(versions)] if versions else []
        found += [f"{name} is not installed" for name in condition.missing]
        values = {name: (self.environ or {}).get(name, "") for name in condition.environ or ()}
        found += [f"{name}={_CREDENTIALS.sub('//', value)}" for name, value in values.items()]
        found += [f"{name} is not set" for name in condition.unset]
        return found

    def is_certain(self, condition: Condition) -> bool:
        """Return whether the files meet the condition always, not only in a branch that an option may switch off."""
        places = self._places(condition)
        return not places or not all(place.is_conditional for place in places)

    def _places(self, condition: Condition) -> list[Place]:
        return self.reading.places(condition) if self.reading is not None else []


def of_names(names: Iterable[str], environ: Mapping[str, str], device: str, reading: Reading | None = None) -> Facts:
    """Return facts about this process, with the versions of these distributions, and variables that scripts export."""
    exported = {name: value for name, value, _ in reading.environ} if reading is not None else {}
    known = {str(canonicalize_name(name)): probe.distribution_version(name) for name in names}
    versions = {name: version for name, version in known.items() if version is not None}
    return Facts(versions, {**environ, **exported}, device, reading, is_complete=True)


def of_text(text: str) -> Facts:
    """Return the facts in a log: the versions that it lists."""
    names = {"pytorch": "torch"}
    found = {str(canonicalize_name(name)): str(version) for name, version in _PRINTED.findall(text)}
    return Facts({names.get(name, name): version for name, version in found.items()})
