"""A worker runs with the broker of docker-compose.yml, started from an unpacked Kafka with the same properties."""

from pathlib import Path
from typing import Any

import yaml

from deploy.bench.brokers import Brokers
from support.kafka_brokers import needs_brokers
from support.kafka_trial import trial
from support.stream import running

pytestmark = needs_brokers
ROOT = Path(__file__).resolve().parents[4]
ENVIRONMENT: dict[str, str] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["kafka"][
    "environment"
]


class Composed(Brokers):
    """Yield a broker with the properties that the image derives from the container's environment, on other ports."""

    def _properties(self, node: int) -> dict[str, Any]:
        ports = {"9092": self._ports[node]["PLAINTEXT"], "9093": self._ports[node]["CONTROLLER"]}
        properties: dict[str, Any] = {"log.dirs": self.folder / "data"}
        for name, value in ENVIRONMENT.items():
            for old, new in ports.items():
                value = value.replace(f":{old}", f":{new}")
            properties[name.removeprefix("KAFKA_").lower().replace("_", ".")] = value
        return properties


def test_compose_broker_serves_a_worker(tmp_path: Path) -> None:
    cluster = Composed(tmp_path)
    try:
        cluster.start()
        with trial(cluster.hosts(), tmp_path, exactly_once=True) as one, running(one.settings()) as worker:
            one.feed(20)
            one.all_answered()
            assert worker.stop() == 0
    finally:
        cluster.close()
