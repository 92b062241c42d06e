"""`--fit`: runs the job unchanged, then with changes, the cheapest first, until the job fits the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascend_adapt.errors import AdaptError, LaunchError
from ascend_adapt.launch.fit import configuration, trials
from ascend_adapt.launch.fit.configuration import BY_HAND, Configuration
from ascend_adapt.launch.fit.setting import Choices, Setting, in_order
from ascend_adapt.launch.fit.trials import GIB, Measured
from ascend_adapt.launch.one_host.console import say
from ascend_adapt.launch.request import Request

MOST_TRIALS = 10
_SIZES = (32, 64)
_ADVICE = (
    "more tensor-parallel ranks or pipeline stages (and devices), fewer layers, a shorter sequence, or an offloaded "
    "optimizer"
)


@dataclass
class Search:
    """The trials of one job."""

    job: Configuration
    options: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    gib: int

    def __post_init__(self) -> None:
        self.results: dict[Setting, Measured] = {}
        # A pipeline has as many micro batches in flight as stages; gradients accumulate from the second micro batch on.
        self.micro_batches = max(2, self.job.pipeline)

    def run(self) -> Setting | None:
        """Return the first setting that fits; ``results`` holds every setting that was tried."""
        given = self.job.given
        choices, _ = self.job.choices()
        if self._fits(given):
            return given
        if not self.results[given].peak:
            return None
        settings = in_order(given, choices)
        for setting in settings:
            if self._least(setting, choices) > self.gib * GIB:
                continue
            if len(self.results) >= MOST_TRIALS:
                say(f"--fit: ended after {MOST_TRIALS} trials")
                return None
            if self._fits(setting):
                return setting
        # The setting that may save the most memory shows how much is still missing.
        bounds = {one: self._least(one, choices) for one in settings if one not in self.results}
        best = min(bounds, key=lambda one: bounds[one], default=None)
        return best if best is not None and bounds[best] < float("inf") and self._fits(best) else None

    def _fits(self, setting: Setting) -> bool:
        number = len(self.results) + 1
        folder = self.folder / f"trial-{number}"
        say(f"--fit: trial {number}: {setting}")
        try:
            command, _ = self.job.write(setting, folder / "configuration", self.micro_batches)
        except AdaptError as error:
            self.results[setting] = Measured(failed=str(error))
        else:
            self.results[setting] = trials.run(self.options, command, folder, self.environ)
        say(f"--fit: trial {number}: {_shown(self.results[setting])}")
        if self.results[setting].fits(self.gib) != "fragments":
            return self.results[setting].fits(self.gib) == "yes"
        confirmed = trials.run(self.options, command, folder / f"on-{self.gib}-GiB", self.environ, self.gib)
        if confirmed.failed:
            self.results[setting] = replace(self.results[setting], refused_on=self.gib)
            say(f"--fit: trial {number}: on {self.gib} GiB: {confirmed.failed}")
        else:
            self.results[setting] = replace(self.results[setting], reserved=confirmed.reserved)
        return not confirmed.failed

    def _least(self, setting: Setting, choices: Choices) -> float:
        """Return a lower bound of a setting's peak in bytes: each change saves at most as much as it saves alone.

        The bound is 0 for a single change, which is measured before every combination that contains it.
        """
        given = self.job.given
        changes = setting.changed_from(given)
        alone = {
            name: replace(given, **{name: choices[name][0] if name == "micro" else value})
            for name, value in changes.items()
        }
        if any(one not in self.results for one in alone.values()):
            return 0.0
        if not all(self.results[one].peak for one in alone.values()):
            return float("inf")  # The single change failed, so the combination would fail too.
        peak = self.results[given].peak
        share = 1.0
        if "micro" in changes and given.micro and alone["micro"].micro:
            share = (given.micro - changes["micro"]) / (given.micro - alone["micro"].micro)
        saved = {name: peak - self.results[one].peak for name, one in alone.items()}
        return peak - sum(size * (share if name == "micro" else 1.0) for name, size in saved.items())


def run(request: Request, options: Sequence[str], command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Try settings until the job fits the device; print the table and the diff; return 0 if a setting fits, else 1.

    Raises:
        LaunchError: the job's configuration cannot be changed in a copy.
    """
    from ascend_adapt.launch.jobs.context import default_run_dir

    folder = Path(request.log_dir or default_run_dir(request.native or request.target)).resolve()
    job = configuration.of(request, command, request.nproc or 1)
    if job is None:
        raise LaunchError(
            "--fit: the job's options are in its script, expected GPT-NeoX's YAML, DeepSpeed's JSON, or options on the "
            f"command line — run it with --full-size alone, and change these yourself: {'; '.join(BY_HAND.values())}"
        )
    say(f"run directory {folder}")
    for line in job.choices()[1]:
        say(f"--fit: {line}")
    gib = request.memory or _SIZES[-1]
    search = Search(job, options, folder, environ, gib)
    found = search.run()
    for line in _table(search):
        say(line)
    if found is None:
        failed = search.results[job.given].failed
        say(f"--fit: {failed or f'no setting fits {gib} GiB; remaining options: {_ADVICE}'}")
        return 1
    _print_difference(job, found, folder, gib)
    return 0


def _print_difference(job: Configuration, found: Setting, folder: Path, gib: int) -> None:
    if found == job.given:
        say(f"--fit: the job fits {gib} GiB without changes")
        return
    command, differences = job.write(found, folder / "fits")
    say(f"--fit: fits {gib} GiB with these changes; your files are unchanged:")
    for line in differences:
        print(line)
    say(f"start it with: ascend-run OPTIONS {' '.join(command)}")


def _shown(result: Measured) -> str:
    return result.failed or f"peak {result.peak / GIB:.1f} GiB, reserved {result.reserved / GIB:.1f} GiB"


def _table(search: Search) -> list[str]:
    """Return the table of all trials: setting, highest peak memory of a rank, whether it fits, and cost."""
    sizes = sorted({*_SIZES, search.gib})
    head = ["setting", "peak", "reserved", *(f"fits {size} GiB" for size in sizes), "recomputed", "moved per step"]
    rows = [head]
    for setting, result in search.results.items():
        name = f"{setting}{' (as given)' if setting == search.job.given else ''}"
        if result.failed:
            rows.append([name, result.failed])
            continue
        sized = [f"{size / GIB:.1f} GiB" for size in (result.peak, result.reserved)]
        costs = [f"{result.recomputed:.0%}", f"{result.bytes_moved / GIB:.1f} GiB"]
        rows.append([name, *sized, *(result.fits(size) for size in sizes), *costs])
    widths = [max(len(row[place]) for row in rows if len(row) > 2) for place in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    lines.append(
        f"memory of the rank that uses the most, with at most {search.micro_batches} micro batches per step (more do "
        "not increase it); recomputed: share of a step's floating-point operations"
    )
    return lines
