"""nginx with the shipped configuration (deploy/nginx.conf) in front of a service process, for benchmarks and tests."""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightjar_alerts.service.local import HOST, free_port

SHIPPED: Final = Path(__file__).resolve().parents[1] / "nginx.conf"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class NginxProcess:
    """A running nginx.

    Attributes
    ----------
    port, plain_port : TLS port, and the port that redirects to it.
    certificate : certificate of ``localhost``, which clients have to trust.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    plain_port: int
    folder: Path

    @property
    def certificate(self) -> Path:
        """Path of the certificate."""
        return self.folder / "fullchain.pem"

    def memory(self) -> int:
        """Return the resident bytes of the workers."""
        pid = self.process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pages = sum(int(Path(f"/proc/{worker}/statm").read_text().split()[1]) for worker in workers)
        return pages * os.sysconf("SC_PAGE_SIZE")


def is_installed() -> bool:
    """Return whether nginx and openssl, which makes the certificate, are installed."""
    return shutil.which("nginx") is not None and shutil.which("openssl") is not None


def client_context(certificate: Path) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts a certificate."""
    return ssl.create_default_context(cafile=str(certificate))


def self_signed(folder: Path) -> None:
    """Write a key and a certificate of ``localhost`` into a folder, with the names that nginx.conf has."""
    certificate = ["-keyout", f"{folder}/privkey.pem", "-out", f"{folder}/fullchain.pem", "-subj", "/CN=localhost"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-addext", f"subjectAltName=DNS:localhost,IP:{HOST}"]
    subprocess.run(["openssl", "req", *kind, *certificate, *names], check=True, capture_output=True)


@contextmanager
def running_nginx(folder: Path, service_port: int, changes: Mapping[str, str] | None = None) -> Iterator[NginxProcess]:
    """Run nginx for the length of a ``with`` block, with its own ports and paths.

    Parameters
    ----------
    folder : created for the configuration, the certificate and the logs.
    changes : further replacements in the configuration.
    """
    folder.mkdir()
    self_signed(folder)
    plain_port, port = free_port(), free_port()
    text = SHIPPED.read_text()
    for old, new in {
        "listen 80;": f"listen {HOST}:{plain_port};",
        "listen [::]:80;": "",
        "listen 443 ssl;": f"listen {HOST}:{port} ssl;",
        "listen [::]:443 ssl;": "",
        "server 127.0.0.1:8080": f"server {HOST}:{service_port}",
        "/etc/nginx/tls": str(folder),
        "/var/log/nginx": str(folder),
        **(changes or {}),
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {kind}_temp_path {folder / kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(text.replace("http {\n", f"http {{\n{paths}", 1))
    options = ["-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf", "-p", str(folder)]
    user = "user root;" if os.geteuid() == 0 else ""  # the folder may be open to its owner only
    directives = ["-g", f"daemon off; pid {folder / 'pid'}; {user}"]
    checked = subprocess.run(["nginx", "-t", *options, *directives], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(["nginx", *options, *directives])
    try:
        _wait_listening(port)
        yield NginxProcess(process, port, plain_port, folder)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _wait_listening(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return
