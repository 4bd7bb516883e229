"""Model registry: the models that a process serves, and their versions, names and changes.

It has no transport: the HTTP service and the stream worker both use
:class:`service.registry.manager.ModelManager`. Bundles lie in the model repository, a folder in either or both of two
layouts:

- ``<folder>/<name>/<version>/manifest.json``: all versions of a model, so that one can be rolled back;
- ``<folder>/<any name>/manifest.json``: an exported bundle, replaced in place by its successor.

Name and version are those of the manifest. Without a model repository, only the bundles of the settings are served.
"""
