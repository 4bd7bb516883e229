"""The whole service, as a user starts it, answers as it was recorded; ``support.contract`` records it anew."""

import shutil

import pytest

pytest.importorskip("onnx", reason="making a bundle of a few nodes needs the [train] extra")

from support.contract.__main__ import found, recorded
from support.contract.masks import differences
from support.contract.servers import SERVERS
from support.contract.streams import STREAMS


@pytest.mark.parametrize("name", [*SERVERS, *STREAMS])
def test_replies_are_as_recorded(name: str) -> None:
    if name == "redis" and shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    assert differences(recorded(name), found(name)) == []
