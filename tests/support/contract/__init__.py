"""A contract of the whole service: requests to real processes, their replies recorded once and compared ever after.

    PYTHONPATH=tests python -m support.contract --record             write tests/contract/recorded.jsonl
    PYTHONPATH=tests python -m support.contract --tree OLD           compare the service of another checkout
    PYTHONPATH=tests python -m support.contract --only bundled       one server or stream, compared

The processes are those a user starts; what differs from run to run (ids, times, places, versions of the bundled models)
is masked (:mod:`support.contract.masks`), and numbers agree to 1e-5.
"""
