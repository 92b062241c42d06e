"""Unmodified public training programs, as their users start them, with tiny data and models."""

from own_scripts import from_scratch, hugging_face_examples, other_fields, packaged, trainers

JOBS = (*from_scratch.JOBS, *hugging_face_examples.JOBS, *trainers.JOBS, *other_fields.JOBS, *packaged.JOBS)
