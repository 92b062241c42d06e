"""What can be said of a system and of a job without changing it: doctor, status, evidence."""
