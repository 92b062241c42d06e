"""Runtime: enable() and disable() combine settings, plugins and patches in one process."""
