"""The server for gRPC in docs/grpc.md, in a real nginx with deploy/nginx.conf, in front of a real service process."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench.nginx import is_installed, running_nginx
from nightjar_alerts.service.local import HOST, free_port, running
from support.oip import history

pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
import grpc

from support.rpc import Client, refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="nginx or openssl is not installed (apt-get install nginx openssl)"),
]

PAGE = Path(__file__).parents[2] / "docs" / "grpc.md"
BEFORE = "    # Errors that nginx answers itself"


@pytest.fixture
def proxied(tmp_path: Path, tiny_bundle: Path) -> Iterator[Client]:
    """A client of nginx, which passes its calls to a service."""
    service_port, port = free_port(), free_port()
    (server,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path / "nginx"
    server = server.replace("listen 8443", f"listen {HOST}:{port}").replace("127.0.0.1:8001", f"{HOST}:{service_port}")
    server = server.replace("/etc/nginx/tls", str(folder))
    with (
        running(tiny_bundle, {"NIGHTJAR_GRPC_PORT": str(service_port)}) as service,
        running_nginx(folder, service.port, {BEFORE: f"{server}\n{BEFORE}"}) as nginx,  # runs nginx -t
        Client(port, credentials=grpc.ssl_channel_credentials(nginx.certificate.read_bytes())).opened() as client,
    ):
        yield client


def test_nginx_passes_calls_and_their_errors(proxied: Client) -> None:
    (model,) = {entry.name for entry in proxied.call("ModelStatistics").model_stats}
    assert proxied.infer(history(3.0, 5.0), model=model).model_name == model
    with refused("NOT_FOUND") as refusal:
        proxied.infer(history(3.0), model="nothing")
    assert refusal.metadata["problem"] == "/problems/not-found"
