"""Known problems: data that names the cause of a failure, or predicts it from versions, environment and files.

Plugins declare them in YAML files, which are read only after a failure or on request.
"""
