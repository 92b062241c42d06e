"""Known problems: data that explains a failure from its log, or predicts it from versions, environment and files.

Plugins declare them in YAML files, which are read only after a failure or on request.
"""
