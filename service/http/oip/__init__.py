"""Open Inference Protocol v2 over HTTP: light curves as named tensors, in JSON or with the binary tensor extension.

The tensors are light curves as they were observed, never the inputs of a graph: what a client sends goes through the
same checks, featurisation, admission, deadlines and outcomes as ``/v1/classify``, and nothing here
decides anything about astronomy. `tritonclient.http` works unchanged.

How a ragged batch of ``b`` light curves with ``n`` observations in all becomes tensors (first datatype: the one told in
the model's metadata; the others are accepted as well):

=============== =================== ============= ======================================================================
input           datatype            shape         meaning
=============== =================== ============= ======================================================================
``mjd``         FP64                [n]           times, MJD (TAI), days; FP32 would have a grain of 5.6 minutes
``flux``        FP32, FP64          [n]           difference fluxes in the request parameter ``flux_unit`` (nJy)
``flux_err``    FP32, FP64          [n]           their standard errors
``band``        BYTES, any integer  [n]           names (u, g, r, i, z, y), or indices 0 to 5 in that order
``offsets``     INT64, INT32        [b + 1]       light curve i is [offsets[i]:offsets[i + 1]]; without it, b = 1
``detected``    BOOL                [n]           optional detection flags
``metadata``    FP32, FP64          [b, k]        optional; the model's k metadata columns in order, NaN where missing
``object_id``   BYTES               [b]           optional names, given back in the output of the same name
=============== =================== ============= ======================================================================

A classifier answers ``probabilities`` FP32 [b, classes], ``status`` and ``reason`` BYTES [b]; by name only, for they
cost bytes, ``embedding`` FP32 [b, d], ``detail`` BYTES [b] (a reason in words, with a pointer to the value at fault)
and ``object_id``.

- A request is always a batch. A light curve that breaks a rule is ``rejected`` alone, one that the model can say
  nothing about is ``abstained``; their rows are NaN, for a number would be a lie. What makes the whole request
  unreadable (sizes that do not add up, another datatype, offsets that go back) is a problem document for all of it.
- Names of classes and of metadata columns are in ``/v1/models``.
- Request parameters: ``timeout`` (microseconds, as Triton's clients send it) or ``deadline_ms``; ``flux_unit``;
  ``binary_data_output``. Sequences are refused rather than ignored.
- ``probabilities`` with the output parameter ``classification`` (the client's ``class_count``) are texts instead,
  ``value:index:label`` of so many most probable classes [b, count], empty where there is no answer.
- JSON has no NaN: ``null`` stands for it in both directions (the NaN that some encoders write is read as well).
- A body may be gzip or deflate (zlib); the limit on its size holds for the decompressed bytes. Replies are not
  compressed. A header length of 0, a raw single tensor, is refused: every model here takes several.
- Errors are the problem documents of every other route with the member ``error`` that clients of this protocol read.
"""
