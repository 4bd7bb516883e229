"""Model registry: the models that a process serves, with their versions, names and changes.

It does not depend on a transport: the HTTP service and the stream worker both use
:class:`service.registry.manager.ModelManager`. The model repository is a folder of bundles in one or both of two
layouts:

- ``<folder>/<name>/<version>/manifest.json``: all versions of a model, so that a rollback is possible;
- ``<folder>/<any name>/manifest.json``: an exported bundle, replaced in place by its successor.

Name and version are taken from the manifest. Without a model repository, only the bundles of the settings are served.
"""
