"""One training step: pipeline schedule, gradients, loss scale, optimizer."""
