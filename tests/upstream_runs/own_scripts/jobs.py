"""Unmodified public training programs, as their users start them, with tiny data and models."""

from own_scripts import from_scratch, hugging_face_examples, language_models, other_fields, packaged, trainers, unseen

JOBS = (
    *from_scratch.JOBS,
    *hugging_face_examples.JOBS,
    *trainers.JOBS,
    *other_fields.JOBS,
    *unseen.JOBS,
    *language_models.JOBS,
    *packaged.JOBS,
)
