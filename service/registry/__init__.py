"""The models that a process serves: many bundles, their versions and names, changed while requests are answered.

Nothing here knows of HTTP: :class:`service.registry.repository.ModelRepository` is what a transport, or a worker that
reads a stream, asks for a model. The bundles lie in a folder, in either or both of two layouts:

- ``<folder>/<name>/<version>/manifest.json``: every version of a model side by side, so that one can go back;
- ``<folder>/<any name>/manifest.json``: a bundle as it came out of the export, replaced in place by its successor.

Name and version are those of the manifest. Without any such folder the bundle of the settings is served.
"""
