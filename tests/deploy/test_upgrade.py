"""Upgrade and roll back: the version before and this one side by side, on the same bundles, groups, keys and settings.

The version before is a commit of this repository, unpacked and run with this environment's packages.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis

from deploy.bench.nginx import is_installed, running_nginx
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.service.local import SERVE, WORKER, ServiceDied, ServiceProcess, running, start
from nightjar_alerts.service.settings import ALL_FIELDS, REMOVED_SETTINGS
from support.edge import curve, wait_until
from support.kafka_cluster import kafka_cluster
from support.redis import needs_redis, redis_server
from support.stream import FAST_GROUP, alert

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "23c0354"
pytestmark = pytest.mark.slow

KEY = "an-api-key-of-a-test"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before, unpacked from the history of this clone."""
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this clone does not have {BEFORE}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def environment(source: Path) -> Mapping[str, str]:
    return os.environ | {"PYTHONPATH": str(source / "src"), "NIGHTJAR_NATIVE": "off"}


def serving(source: Path, bundle: Path, **settings: str) -> AbstractContextManager[ServiceProcess]:
    return running(bundle, settings, command=SERVE, environment=environment(source))


def working(source: Path, **settings: str) -> AbstractContextManager[ServiceProcess]:
    return running(None, settings, command=WORKER, environment=environment(source))


def post(url: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{url}/v1/classify", json.dumps(body).encode(), {"Content-Type": "application/json"} | dict(headers or {})
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def bundle_of(source: Path) -> Path:
    """The default bundle of a version."""
    return DEFAULT_BUNDLE if source == ROOT else source / "models/pretrained/astro-moe-elasticc/3.1.0"


def test_bundle_of_the_version_before_gives_the_same_probabilities(before: Path) -> None:
    found = []
    for source, bundle in ((before, bundle_of(before)), (ROOT, bundle_of(before)), (ROOT, DEFAULT_BUNDLE)):
        with serving(source, bundle) as service:
            _, answer = post(service.url, curve(60))
        found.append(answer["results"][0]["probabilities"])
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)


def test_version_before_refuses_a_newer_bundle_with_a_sentence(before: Path) -> None:
    with pytest.raises(ServiceDied, match=r"(?s)no readable manifest.*follow_up"), serving(before, DEFAULT_BUNDLE):
        pass


@pytest.mark.skipif(not is_installed(), reason="nginx or openssl is not installed")
def test_both_versions_behind_the_proxy_answer_every_request(before: Path, tmp_path: Path) -> None:
    with serving(before, bundle_of(before)) as old, serving(ROOT, DEFAULT_BUNDLE) as new:
        first, second = (f":{one.port} max_fails=0;" for one in (old, new))
        changes = {first: f"{first} server 127.0.0.1{second}", " ssl;": ";"}
        with running_nginx(tmp_path / "nginx", old.port, changes) as nginx:
            answers = [post(f"http://localhost:{nginx.port}", curve(10 + number)) for number in range(60)]
        assert {status for status, _ in answers} == {200}
        assert {answer["results"][0]["status"] for _, answer in answers} == {"classified"}
        assert min(one.metric("nightjar_confidence_count") for one in (old, new)) > 0


@needs_redis
def test_both_versions_count_a_key_together_in_redis(before: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    with redis_server(tmp_path) as server, ExitStack() as stack:
        settings = {
            "NIGHTJAR_NAMED_KEYS": json.dumps({"client": [digest]}),
            "NIGHTJAR_KEY_LIMITS": '{"*": {"requests_per_day": 4}}',
            "NIGHTJAR_LIMITS_REDIS_URL": server.url,
        }
        services = [stack.enter_context(serving(source, bundle_of(source), **settings)) for source in (before, ROOT)]
        head = {"Authorization": f"Bearer {KEY}"}
        statuses = [post(services[number % 2].url, curve(9), head)[0] for number in range(6)]
    assert statuses == [200, 200, 200, 200, 429, 429]


def alert_of(key: bytes) -> bytes:
    """The key of a result without its model: each version serves the version of the bundle that it comes with."""
    return key.rpartition(b"/")[0]


def results(client: Any) -> list[bytes]:
    return [alert_of(fields[b"key"]) for _, fields in client.xrange("results")]


def has_results(client: Any, count: int) -> bool:
    return len(set(results(client))) == count


@needs_redis
def test_both_versions_share_a_redis_group_without_loss_or_repetition(before: Path, tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        client = redis.Redis(port=server.port, protocol=2)
        settings = {
            "NIGHTJAR_SOURCE": f"{server.url.removesuffix('/0')}/alerts?delete=yes",
            "NIGHTJAR_SINK": f"{server.url.removesuffix('/0')}/results",
            "NIGHTJAR_DEAD_LETTERS": f"file:{tmp_path}/dead/",
            "NIGHTJAR_BATCH_MESSAGES": "16",
        }
        sources = [before, ROOT, before]  # upgrade, side by side, roll back
        with working(before, **settings), working(ROOT, **settings):
            for number in range(300):
                client.xadd("alerts", {"value": alert(number, flux=900.0 + number)})
            wait_until(lambda: len(set(results(client))) == 300)
        for turn, source in enumerate(sources, 1):
            with working(source, **settings):
                for number in range(300 + 50 * turn, 350 + 50 * turn):
                    client.xadd("alerts", {"value": alert(number, flux=900.0 + number)})
                wait_until(partial(has_results, client, 300 + 50 * turn))
        keys = results(client)
    assert len(keys) == len(set(keys)) == 450


@pytest.mark.parametrize("order", ["upgrade", "roll back"])
def test_killed_worker_of_one_version_is_continued_by_the_other(before: Path, tmp_path: Path, order: str) -> None:
    """Both read the committed offset, and the crash marker that the other one left in it."""
    first, second = (before, ROOT) if order == "upgrade" else (ROOT, before)
    with kafka_cluster() as cluster:
        cluster.create("alerts", 2)
        cluster.create("results", 1)
        settings = {
            "NIGHTJAR_SOURCE": f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}",
            "NIGHTJAR_SINK": f"kafka://{cluster.hosts}/results",
            "NIGHTJAR_DEAD_LETTERS": f"file:{tmp_path}/dead/",
            "NIGHTJAR_BATCH_MESSAGES": "4",
        }
        cluster.produce("alerts", [alert(number, flux=900.0 + number) for number in range(200)])
        with cluster.following("results") as so_far:
            worker = start(tmp_path, None, settings, WORKER, environment(first))
            wait_until(lambda: len(so_far()) > 20)
            worker.process.kill()
            worker.process.wait()
            with working(second, **settings):
                cluster.produce("alerts", [alert(number, flux=900.0 + number) for number in range(200, 260)])
                wait_until(lambda: len({alert_of(message.key()) for message in so_far()}) == 260)
                time.sleep(1)
            keys = [alert_of(message.key()) for message in so_far()]
        assert len(keys) - len(set(keys)) <= 256
    assert not any((tmp_path / "dead").rglob("*.json"))


def test_settings_of_the_version_before_exist_or_are_refused_with_a_sentence(before: Path) -> None:
    code = "import json; from nightjar_alerts.service.settings import ALL_FIELDS; print(json.dumps(list(ALL_FIELDS)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(before), capture_output=True, check=True)
    assert set(json.loads(done.stdout)) - set(ALL_FIELDS) <= set(REMOVED_SETTINGS)
