"""enable() and disable(): settings, plugins and the patches they declare, brought together in one process."""
