"""Reads a job's memory settings from its arguments and configuration files, and writes changed copies of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.errors import ConfigError
from ascend_adapt.launch.fit import names, words
from ascend_adapt.launch.fit.file_copy import ConfigurationFile
from ascend_adapt.launch.fit.names import Names
from ascend_adapt.launch.fit.setting import Choices, Setting
from ascend_adapt.launch.request import Request
from ascend_adapt.whole_numbers import whole_number

_DEEPSPEED_KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "fp16", "bf16")
_SHELLS = ("bash", "sh", "zsh", "nohup", "srun", "make")
BY_HAND = {
    "recompute": "recomputation: gradient_checkpointing_enable() of transformers, or torch.utils.checkpoint of layers",
    "micro": "micro batch: the batch size of the data loader, with as many more accumulation steps",
    "zero": "ZeRO stage: zero_optimization.stage of DeepSpeed's JSON file, or fully_shard (FSDP2) of the layers",
    "sequence": "sequence parallelism: --sequence-parallel of Megatron, with tensor parallelism",
}
"""Maps a field of Setting to advice for a job that has no option or file for it."""


@dataclass(frozen=True)
class Configuration:
    """The configuration of one job, which can be changed in copies: arguments after ascend-run's options, and files."""

    names: Names
    words: tuple[str, ...]
    files: tuple[ConfigurationFile, ...]
    ranks: int
    dialect: str | None = None
    """Dialect of a native run; its recipe checks each change."""

    @property
    def given(self) -> Setting:
        """The job's current setting."""
        micro = self._number("micro")
        sequence = self._file_value("sequence") is True or self._has(self.names.sequence)
        recompute = self._file_value("recompute") is True or any(map(self._has, self.names.recompute))
        return Setting(recompute, micro, self._zero(), sequence and self.tensor > 1)

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks."""
        return max(self._number("tensor") or 1, 1)

    @property
    def pipeline(self) -> int:
        """Pipeline stages."""
        return max(self._number("pipeline") or 1, 1)

    @property
    def data(self) -> int:
        """Data-parallel ranks."""
        return max(self.ranks // (self.tensor * self.pipeline), 1)

    @property
    def accumulation(self) -> int:
        """Micro batches per optimizer step."""
        accumulation, total, micro = (self._number(name) for name in ("accumulation", "total", "micro"))
        if accumulation is None and total and micro:
            return max(total // (micro * self.data), 1)
        return accumulation or 1

    def choices(self) -> tuple[Choices, list[str]]:
        """Return the alternatives to the given setting, and the reason for each setting that cannot be changed."""
        given, found, why_not = self.given, dict[str, Sequence[Any]](), list[str]()

        def offer(name: str, values: Sequence[Any], has_option: bool, reason: str) -> None:
            if not values or not has_option:
                why_not.append(reason if has_option else f"not changed automatically: {BY_HAND[name]}")
            else:
                found[name] = values

        sequence = self.names.sequence or "sequence" in self.names.keys
        offer(
            "sequence",
            [True] if self.tensor > 1 and not given.sequence else [],
            bool(sequence),
            "sequence parallelism: " + ("is on" if given.sequence else "needs tensor parallelism"),
        )
        # In GPT-NeoX, size 1 is a pipeline of one stage; only size 0 is no pipeline.
        has_pipeline = self.pipeline > 1 or (self.names is names.NEOX and not self.dialect and self._number("pipeline"))
        most = 1 if has_pipeline else 3
        stages = [stage for stage in self._stages() if given.zero < stage <= most] if self.data > 1 else []
        offer(
            "zero",
            stages,
            bool(self._stages()),
            f"ZeRO stage: {self.data} data-parallel rank{'s' if self.data > 1 else ''}, {self.pipeline} pipeline "
            f"stage{'s' if self.pipeline > 1 else ''}: no stage above {given.zero}",
        )
        micro = given.micro or 1
        smaller = [micro // 2**power for power in range(1, 8) if micro % 2**power == 0]
        offer("micro", smaller, given.micro is not None, f"micro batch: {micro} cannot be halved")
        recompute = self.names.recompute or "recompute" in self.names.keys
        offer("recompute", [] if given.recompute else [True], bool(recompute), "recomputation: already on")
        return found, why_not

    def write(self, setting: Setting, folder: Path, accumulation: int | None = None) -> tuple[list[str], list[str]]:
        """Write changed copies of the files into a folder; return the changed job's arguments and the differences.

        The number of samples per step stays the same, unless ``accumulation`` sets the number of micro batches.

        Raises:
            ConfigError: the change cannot be made.
        """
        changes = setting.changed_from(self.given)
        given = self.given
        if given.micro and setting.micro:
            kept = self.accumulation * given.micro // setting.micro
            wanted = min(accumulation or kept, kept)
            if wanted != self.accumulation:
                changes["accumulation"] = wanted
                changes["total"] = wanted * setting.micro * self.data
        folder.mkdir(parents=True, exist_ok=True)
        changed, differences = list(self.words), list[str]()
        for file in self.files:
            in_file = {
                self.names.keys[name]: value
                for name, value in changes.items()
                if name in self.names.keys and self._stands_in(file, name)
            }
            differences += file.write(folder, in_file)
        changed = self._with_copies(changed, folder)
        options = self._options(changes)
        changed = words.with_options(changed, options)
        if options:
            differences.append(f"options: {' '.join(options)}")
        if self.dialect is not None:
            self._check(changed, setting)
        return changed, differences

    def _stands_in(self, file: ConfigurationFile, name: str) -> bool:
        """Return whether this file is to be changed: it sets the value, or it is the first and no option sets it."""
        here = file.get(self.names.keys[name])
        if here is not None:
            return bool(here != "auto")
        if file is not self.files[0] or self._file_value(name) is not None:
            return False
        return name in ("zero", "recompute", "sequence") or (name == "accumulation" and not self.names.accumulation)

    def _options(self, changes: Mapping[str, Any]) -> list[str]:
        options: list[str] = []
        for name in ("micro", "accumulation", "total"):
            option = getattr(self.names, name)
            is_only_one = name == "total" and not self.names.accumulation
            if name in changes and option and (name != "total" or is_only_one or self._is_given(option)):
                options += [option, str(changes[name])]
        if "zero" in changes:
            options += self.names.zero.get(changes["zero"], ())
        if changes.get("recompute"):
            options += self._recompute_words()
        if changes.get("sequence"):
            options += self.names.sequence
        return options

    def _is_given(self, option: str) -> bool:
        return words.find(self.words, option) is not None

    def _recompute_words(self) -> Sequence[str]:
        alternatives = self.names.recompute
        if self.dialect is None or len(alternatives) < 2:
            return alternatives[0] if alternatives else ()
        for alternative in alternatives:
            try:
                _native(self.dialect, words.with_options(self.words, alternative), self.ranks)
            except ConfigError:
                continue
            return alternative
        raise ConfigError(f"recomputation: this version of {self.names.kind} has no option for it")

    def _check(self, changed: Sequence[str], setting: Setting) -> None:
        """Check that the native trainer understands the change.

        Raises:
            ConfigError: it rejects the change, or reads another setting.
        """
        config = _native(str(self.dialect), changed, self.ranks)
        found = Setting(
            config.parallel.recompute == "full",
            config.batch.micro,
            config.parallel.zero_stage,
            config.parallel.sequence,
        )
        if found != setting:
            raise ConfigError(
                f"{self.names.kind}: became {found} after the change, expected {setting} — change it yourself"
            )

    def _with_copies(self, given: Sequence[str], folder: Path) -> list[str]:
        """Return the arguments with each file, or the folder of all of them, replaced by its copy."""
        paths = {str(file.path): str(folder / file.path.name) for file in self.files}
        folders = {str(file.path.parent) for file in self.files}
        changed = []
        for place, word in enumerate(given):
            option, equals, value = word.partition("=")
            path = value if equals and word.startswith("-") else word
            new = paths.get(path)
            before = given[place - 1] if place else ""
            if new is None and before in ("-d", "--conf_dir") and str(Path(path)) in folders:
                new = str(folder)
            changed.append(word if new is None else f"{option}={new}" if path is value else new)
        return changed

    def _stages(self) -> list[int]:
        if "zero" in self.names.keys and self.files:
            return [1, 2, 3]
        return sorted(self.names.zero)

    def _zero(self) -> int:
        stage = self._file_value("zero")
        if isinstance(stage, int):
            return stage
        given = [stage for stage, options in self.names.zero.items() if self._has(options)]
        return max(given, default=0)

    def _has(self, options: Sequence[str]) -> bool:
        """Return whether the first of these option words is given, followed by the same value."""
        if not options or words.find(self.words, options[0]) is None:
            return False
        value = words.value_of(self.words, options[0])
        return len(options) == 1 or options[1].startswith("--") or str(value).lower() == options[1].lower()

    def _file_value(self, name: str) -> Any:
        keys = self.names.keys.get(name)
        found = [file.get(keys) for file in self.files] if keys else []
        return next((value for value in found if value is not None), None)

    def _number(self, name: str) -> int | None:
        value = self._file_value(name)
        if not isinstance(value, int):
            value = words.value_of(self.words, getattr(self.names, name))
        return whole_number(str(value))


def of(request: Request, command: Sequence[str], ranks: int) -> Configuration | None:
    """Return the job's configuration, or None if it cannot be changed in a copy.

    Raises:
        ConfigError: one of its files cannot be read, or the native trainer rejects it.
    """
    if not request.native and (request.form == "command" and Path(request.target).name in _SHELLS):
        return None
    files = _files(command)
    kind = _kind(request, command, files)
    if kind is None:
        return None
    if request.native:
        _native(request.native, command, ranks)
    own = tuple(one for one in files if kind.keys)
    return Configuration(kind, tuple(command), own, ranks, request.native)


def _kind(request: Request, command: Sequence[str], files: Sequence[ConfigurationFile]) -> Names | None:
    if request.native:
        return {"neox": names.NEOX, "megatron": names.MEGATRON, "oneflow": names.ONEFLOW, "glm": names.GLM}.get(
            request.native
        )
    if any(Path(word).name == "deepy.py" for word in command) and files:
        return names.NEOX
    if words.find(command, "--micro-batch-size") is not None:
        deepspeed = words.find(command, "--deepspeed") is not None
        return names.MEGATRON_DEEPSPEED if deepspeed else names.MEGATRON
    if words.find(command, "--block-lm") is not None:
        return names.GLM
    if words.find(command, "--per-device-train-batch-size") is not None:
        return names.HUGGING_FACE
    return names.DEEPSPEED if files else None


def _files(command: Sequence[str]) -> list[ConfigurationFile]:
    """Return the GPT-NeoX YAML files and DeepSpeed JSON files among the arguments."""
    pairs = zip(command, command[1:], strict=False)
    folder = next((after for word, after in pairs if word in ("-d", "--conf_dir")), "")
    found: dict[Path, ConfigurationFile] = {}
    for word in command:
        text = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        for path in (Path(folder, text), Path(folder, f"{text}.yml"), Path(text)):
            if path.suffix in (".yml", ".yaml", ".json") and path.is_file() and path not in found:
                file = ConfigurationFile.read(path)
                if path.suffix != ".json" or any(key in file.values for key in _DEEPSPEED_KEYS):
                    found[path] = file
                break
    return list(found.values())


def _native(dialect: str, command: Sequence[str], ranks: int) -> Any:
    from ascend_adapt.recipes import dialects

    return dialects.read(dialect, list(command)).build(ranks)[0]
