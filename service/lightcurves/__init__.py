"""Light curves as clients send them: schemas, decoding and validation, for every transport and format.

:mod:`service.lightcurves.schemas` declares the fields, :mod:`service.lightcurves.decoding` decodes bytes or objects,
and :mod:`service.lightcurves.validation` converts the fields to :class:`models.lightcurve.LightCurve`. This package
imports no web framework.
"""
