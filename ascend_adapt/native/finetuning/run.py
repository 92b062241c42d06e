"""Finetuning run: epochs over a cloze task, validation after each, and a test of the best weights.

The training loop is that of every native run, with other batches and another objective, and validation after each
epoch. Source: THUDM/GLM@4f61ed72 finetune_glm.py (_train, finetune) and tasks/eval_utils.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ascend_adapt import regular_files
from ascend_adapt.config.glm_config import CHOICES, METRICS
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.native.checkpoint.folder import write_durably
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.finetuning import metrics
from ascend_adapt.native.finetuning.cloze_batches import ClozeSamples, evaluation_batches
from ascend_adapt.native.finetuning.objective import ClozeObjective
from ascend_adapt.native.finetuning.patterns import pattern_of
from ascend_adapt.native.loop import Batches, Log, TrainingRun
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples.cloze_examples import FILES, FORMATS, read_examples
from ascend_adapt.native.samples.glm_text import load_vocabulary

BEST = "best"
SCORE = "best.json"


class FinetuningRun(TrainingRun):
    """State of a finetuning run on this rank."""

    def __init__(self, config: TrainConfig, mesh: Mesh, log: Log, run_dir: Path) -> None:
        assert config.cloze is not None
        self.cloze, self.run_dir = config.cloze, run_dir
        self.pattern = pattern_of(self.cloze, load_vocabulary(self.cloze.vocabulary), config.data.seq_length)
        super().__init__(config, mesh, log, run_dir)
        words = None if self.pattern.has_texts_as_answers else self.pattern.answer_ids()
        self.objective = ClozeObjective(self.cloze, CHOICES[self.cloze.task], words)
        for decoder in self.trainer.decoders:
            decoder.objective = self.objective if decoder.last else None
        self.metric = self.cloze.metric or METRICS[self.cloze.task][0]
        self.best_saver: Saver | None = None
        if config.checkpoint.save is not None:
            self.best_saver = Saver(self.trainer, Path(config.checkpoint.save, BEST), weights_only=True)
        self.best = self.group.on_first(self._best_so_far) if self.progress.iteration else None
        self.best_weights: list[torch.Tensor] | None = None

    def open(self, part: str, consumed: int) -> Batches:
        """Return the batches of the training examples."""
        return ClozeSamples(self.config, self.mesh, read_examples(self.cloze, part), self.pattern, consumed)

    def evaluate_if_due(self, iteration: int) -> None:
        """Validate after each epoch, and save the best weights."""
        cloze, batch = self.cloze, self.config.batch
        of_epoch = cloze.micro_batches(batch.micro, self.config.parallel.data)
        before, done = ((iteration - back) * batch.accumulation // of_epoch for back in (1, 0))
        if done == before or not cloze.validates or done // cloze.eval_epochs == before // cloze.eval_epochs:
            return
        scores, loss, _ = self._scored("valid")
        self.log.evaluation(iteration, "valid", loss)
        self._report(done - 1, scores, len(read_examples(cloze, "valid")))
        if self.best is not None and scores[self.metric] <= self.best["score"]:
            return
        self.log.say(f"best {self.metric} {scores[self.metric]:.4f} at iteration {iteration}")
        self.best = {"score": scores[self.metric], "iteration": iteration, "epoch": done - 1}
        self.best_weights = [one.local.to("cpu", copy=True) for one in self.trainer.parameters]
        if self.best_saver is not None:
            self.best_saver.save(self.progress)
            self.best_saver.wait()
            score = self.best_saver.folder.path / SCORE
            self.group.on_first(lambda: self._write(score, self.best))
        self.group.on_first(
            lambda: self._write(self.run_dir / "results.json", {**scores, "type": "validation", "epoch": done - 1})
        )

    def test(self) -> None:
        """Evaluate the best weights on the test set, and write the predictions."""
        if self.best_weights is not None:
            with torch.no_grad():
                for one, weights in zip(self.trainer.parameters, self.best_weights, strict=True):
                    one.local.copy_(weights)
        part = "valid" if self.cloze.tests_validation_set else "test"
        if not Path(self.cloze.folder, FILES[part]).exists():
            self.log.say(f"test: {FILES[part]} does not exist, so there is no test")
            return
        scores, _, predictions = self._scored(part)
        examples = read_examples(self.cloze, part)
        labels = FORMATS[self.cloze.task].labels
        lines = [
            json.dumps({"idx": one.number, "label": _as_upstream(labels[place])})
            for one, place in zip(examples, predictions, strict=True)
        ]
        path = self.run_dir / f"{self.cloze.task}-{part}.jsonl"
        self.group.on_first(lambda: write_durably(path, "\n".join(lines) + "\n"))
        self.log.say(f"predictions for {len(examples)} examples are in {path}")
        if scores:
            self._report(-1, scores, len(examples))
            self.group.on_first(lambda: self._write(self.run_dir / "test_results.json", {**scores, "type": "test"}))

    def _scored(self, part: str) -> tuple[dict[str, float], float, list[int]]:
        """Return the metrics (the same on every rank, empty without labels), the loss and all predictions."""
        mesh, examples = self.mesh, read_examples(self.cloze, part)
        self.objective.clear()
        for batch in evaluation_batches(self.config, mesh, examples, self.pattern):
            self.trainer.losses([batch], 1)
        mine = range(mesh.data_rank, len(examples), self.config.parallel.data)
        # The tensor-parallel ranks of a last stage have equal values, so only the first one is used. Other stages have
        # none.
        own = self.objective.predictions if mesh.tensor_rank == 0 else []
        loss = self.objective.loss_sum if own else 0.0
        every = self.group.together(lambda: (dict(zip(mine, own, strict=False)), loss))
        found = {place: one for each, _ in every for place, one in each.items()}
        predictions = [found[place] for place in range(len(examples))]
        labels = [one.label for one in examples if one.label is not None]
        mean = sum(each for _, each in every) / len(examples)
        if len(labels) < len(examples):
            return {}, mean, predictions
        scores = {name: metrics.FUNCTIONS[name](predictions, labels) for name in METRICS[self.cloze.task]}
        return scores, mean, predictions

    def _report(self, epoch: int, scores: dict[str, float], total: int) -> None:
        values = " ".join(f"{name} = {score:.4f}" for name, score in scores.items())
        self.log.say(f" >> |epoch: {epoch}| overall: total = {total} {values}")

    def _best_so_far(self) -> dict[str, Any] | None:
        if self.config.checkpoint.save is None:
            return None
        path = Path(self.config.checkpoint.save, BEST, SCORE)
        found: dict[str, Any] | None = json.loads(regular_files.read_text(path)) if path.exists() else None
        return found

    @staticmethod
    def _write(path: Path, content: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(content) + "\n")


def _as_upstream(label: Any) -> Any:
    """Return a label as GLM writes it: BoolQ's labels are lower-case words."""
    return str(label).lower() if isinstance(label, bool) else label
