"""Light curves as clients send them: schemas, decoding and validation, for every transport and format.

:mod:`service.lightcurves.schemas` declares the fields, :mod:`service.lightcurves.decoding` decodes bytes or objects to
them, and :mod:`service.lightcurves.validation` turns them into :class:`models.lightcurve.LightCurve` records. Nothing
here imports a web framework.
"""
