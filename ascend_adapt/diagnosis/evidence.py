"""Evidence records: what the conformance suite has verified about a patch, and on which versions.

This project's records are in ``evidence_records.json``, a user's records in ``$XDG_STATE_HOME/ascend_adapt``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import AdaptError

TIERS = ("schema", "emulated", "cpu", "cuda", "hardware")
PROVES = ("wiring", "numerics", "convergence", "speed")
# Recorded but not compared, because static checks do not know these versions.
_NOT_COMPARED = ("cann", "soc", "python")
SHIPPED = Path(__file__).parent / "evidence_records.json"


class EvidenceError(AdaptError):
    """A file of evidence records is invalid, or a record claims more than its tier can verify."""


@dataclass(frozen=True)
class EvidenceRecord:
    """Evidence record: one observation of one patch.

    ``versions`` are those of the target's distribution, of the required packages, and of torch, torch_npu, CANN and the
    SoC if present. ``commit`` is this project's commit, and ``date`` the day of the observation.
    """

    patch: str
    tier: str
    proves: str
    versions: Mapping[str, str]
    commit: str
    date: str

    def __post_init__(self) -> None:
        versions = self.versions if isinstance(self.versions, Mapping) else {"versions": None}
        for text in (self.patch, self.commit, self.date, *versions, *versions.values()):
            if not isinstance(text, str) or not text.isprintable():
                raise EvidenceError(f"evidence of {self.patch!r}: {text!r}, expected one line of text — remove it")
        if self.tier not in TIERS or self.proves not in PROVES:
            raise EvidenceError(
                f"evidence of {self.patch}: {self.tier!r} proves {self.proves!r}, expected one of {', '.join(TIERS)} "
                f"and of {', '.join(PROVES)} — correct the record"
            )
        if self.tier in ("schema", "emulated") and self.proves != "wiring":
            raise EvidenceError(f"evidence of {self.patch}: {self.tier} proves wiring only — remove the record")

    def __str__(self) -> str:
        versions = " ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        return f"{self.tier}: {self.proves} on {versions} ({self.date})"

    def matches(self, found: Mapping[str, str]) -> bool:
        """Return whether ``found`` has every version of the record, ignoring local versions such as +cpu.

        A record without versions matches nothing.
        """
        compared = {name: version for name, version in self.versions.items() if name not in _NOT_COMPARED}
        same = [_release(found.get(name, "")) == _release(version) for name, version in compared.items()]
        return bool(same) and all(same)


def _release(version: str) -> str:
    return version.partition("+")[0]


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's records."""
    state = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state, "ascend_adapt", "evidence")


def load(path: Path) -> list[EvidenceRecord]:
    """Return the records in a file.

    Raises:
        EvidenceError: the file is invalid.
    """
    try:
        data = json.loads(regular_files.read_text(path))
        return [EvidenceRecord(**one) for one in data["records"]]
    except EvidenceError as error:
        raise EvidenceError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EvidenceError(f"{path}: is not a file of evidence records ({error}) — remove it") from error


def known(environ: Mapping[str, str]) -> tuple[list[EvidenceRecord], list[str]]:
    """Return all records of this project and the user, and one message for each invalid file."""
    records, problems = [], []
    own = user_folder(environ)
    for path in [SHIPPED, *(sorted(own.glob("*.json")) if own.is_dir() else ())]:
        try:
            records += load(path)
        except EvidenceError as error:
            problems.append(str(error))
    return records, problems


def write(records: Sequence[EvidenceRecord], path: Path) -> Path:
    """Merge records into ``path`` atomically, and return the path."""
    kept = load(path) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = {(one.patch, one.tier, one.proves, tuple(sorted(one.versions.items()))): one for one in kept}
    identity |= {(one.patch, one.tier, one.proves, tuple(sorted(one.versions.items()))): one for one in records}
    merged = [asdict(one) for _, one in sorted(identity.items())]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps({"records": merged}, indent=1) + "\n")
    aside.replace(path)
    return path


def matching(records: Iterable[EvidenceRecord], patch: str, found: Mapping[str, str]) -> tuple[str, ...]:
    """Return the distinct records of a patch (plugin.patch) that match the versions ``found``, as strings."""
    matches = [record for record in records if record.patch == patch and record.matches(found)]
    return tuple(dict.fromkeys(str(one) for one in sorted(matches, key=lambda one: -TIERS.index(one.tier))))
