"""Recorded contract of the whole service: real processes get the same input, and their output is compared.

    PYTHONPATH=tests python -m support.contract                    compare this checkout with the recordings
    PYTHONPATH=tests python -m support.contract --exact            ... with numbers equal to the last digit
    PYTHONPATH=tests python -m support.contract --only formats     ... one part alone
    PYTHONPATH=tests python -m support.contract --record           write the recordings, in tests/contract

The parts are HTTP servers (:mod:`support.contract.servers`, with the requests in :mod:`support.contract.cases`), stream
workers (:mod:`support.contract.streams`) and the command line (:mod:`support.contract.commands`). One run is compared
with two recordings:

- ``recorded.jsonl``, decoded: status, problem type, reasons, pointers, field names, headers and numbers. Wording,
  times, identifiers, paths and versions of the bundled models are masked (:mod:`support.contract.masks`).
- ``exact/PART.txt``, the bytes: all of that, wording, the order of members, white space, digits, the OpenAPI document
  and what commands print (:mod:`support.contract.exact`).
"""
