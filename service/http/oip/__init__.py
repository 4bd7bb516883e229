"""Open Inference Protocol v2 over HTTP: light curves as named tensors, in JSON or with the binary tensor extension.

The tensors contain observations, not the inputs of the graph: they are validated, featurised, queued and classified as
the light curves of ``/v1/classify``. Light curves are concatenated; ``offsets`` divides ``n`` observations into ``b``
light curves (the first datatype is the one in the model metadata):

=============== =================== ============= ======================================================================
input           datatype            shape         meaning
=============== =================== ============= ======================================================================
``mjd``         FP64                [n]           times, MJD (TAI), days; FP32 would have a resolution of 5.6 minutes
``flux``        FP32, FP64          [n]           difference fluxes in the request parameter ``flux_unit`` (nJy)
``flux_err``    FP32, FP64          [n]           standard errors of ``flux``
``band``        BYTES, any integer  [n]           filter names, or indices into u, g, r, i, z, Y
``offsets``     INT64, INT32        [b + 1]       light curve i is [offsets[i]:offsets[i + 1]]; default: one light curve
``detected``    BOOL                [n]           optional detection flags
``metadata``    FP32, FP64          [b, k]        optional; the model's k metadata columns in order, NaN where missing
``object_id``   BYTES               [b]           optional names, returned in the output of the same name
=============== =================== ============= ======================================================================

The outputs are ``probabilities`` FP32 [b, classes], ``status`` and ``reason`` BYTES [b] and, if requested by name,
``embedding`` FP32 [b, d], ``detail`` BYTES [b] (the reason in words) and ``object_id``.

- An invalid light curve is ``rejected``, a valid one that the model cannot classify is ``abstained``; their rows are
  NaN. Tensors that do not match the model or each other are an error of the whole request.
- Request parameters: ``timeout`` (microseconds) or ``deadline_ms``, ``flux_unit``, ``prior``, ``binary_data_output``.
- The output parameter ``classification`` of ``probabilities`` (``class_count`` in Triton's client) returns texts
  ``value:index:label`` of the most probable classes [b, count] instead, empty for rows without a result.
- In JSON, null stands for NaN in both directions.
- Errors are problem documents with the additional member ``error``, which clients of the protocol read.
"""
