"""A small GLM learns a made-up task in COPA's format: ``python -m pytest -s tests/native/glm_learns_copa.py``.

Twelve causes and their effects; each question offers the right answer and another one. Random weights; three to
four minutes on one core.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from native import glm_cases

PAIRS = (
    ("The rain fell.", "The street was wet."),
    ("The sun rose.", "The room grew bright."),
    ("The glass fell.", "It broke on the floor."),
    ("The dog barked.", "The cat ran away."),
    ("The lamp failed.", "We lit a candle."),
    ("The bus was late.", "I missed the lesson."),
    ("He ate too much.", "His stomach hurt."),
    ("She trained hard.", "She won the race."),
    ("The wind blew.", "The leaves moved."),
    ("The river froze.", "Children went skating."),
    ("The baby cried.", "Its mother came."),
    ("The price rose.", "Nobody bought it."),
)
EPOCHS, WANTED = 30, 95.0
"""WANTED is a percentage of the questions that it was not trained on."""


def questions():
    """Return every question, in an order of its own: 264."""
    draws = random.Random(0)
    made = []
    for (cause, effect), (other_cause, other_effect) in itertools.permutations(PAIRS, 2):
        for premise, right, wrong, kind in (
            (cause, effect, other_effect, "effect"),
            (effect, cause, other_cause, "cause"),
        ):
            label = draws.randrange(2)
            first, second = (right, wrong) if label == 0 else (wrong, right)
            made.append({"premise": premise, "choice1": first, "choice2": second, "question": kind, "label": label})
    draws.shuffle(made)
    return made


@pytest.mark.timeout(1200)
def test_a_small_glm_learns_a_task_in_copas_format(tmp_path):
    settings = glm_cases.finetuning(tmp_path)
    folder = tmp_path / "copa"
    made = questions()
    for name, part in (("train", made[:184]), ("val", made[184:]), ("test", made[184:])):
        rows = [json.dumps({**one, "idx": number}) for number, one in enumerate(part)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    task = replace(settings.cloze, examples=2 * 184, epochs=EPOCHS, loss="mix")
    steps = EPOCHS * task.micro_batches(8, 1)
    model = replace(settings.model, hidden_size=128, head_dim=32, num_heads=4, num_query_groups=4, ffn_hidden_size=512,
                    hidden_dropout=0.0, attention_dropout=0.0)  # fmt: skip
    schedule = replace(settings.schedule, lr=2e-3, warmup=steps // 10, decay=steps)
    settings = replace(settings, cloze=task, model=model, batch=replace(settings.batch, micro=8, total=8),
                       schedule=schedule, iterations=steps)  # fmt: skip
    log = glm_cases.finetune(settings, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "test_results.json").read_text())
    print(*[line for line in log.lines if "epoch" in line], results, sep="\n")
    assert results["accuracy"] > WANTED
