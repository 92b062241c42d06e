"""Diagnosis of a system or a job without changing it: doctor, status, explain, evidence."""
