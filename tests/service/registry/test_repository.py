"""Models that are served and every way to change them, in process: real bundles, real engines, real folders."""

import asyncio
import gc
import shutil
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.service.dataplane import InferOptions
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Tracer
from nightjar_alerts.service.registry.live import Lease, held, infer_many
from nightjar_alerts.service.registry.load import LoadFailed, Refused
from nightjar_alerts.service.registry.names import NotReady, Reference, UnknownModel
from nightjar_alerts.service.registry.repository import ModelRepository
from support.edge import settings, wait_until
from support.graph_bundles import classifier_bundle, forecaster_bundle
from support.graphs import curve
from support.repository import corrupt, lie, version


class Home:
    """A repository of models on disk, and what serves it."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.metrics = Metrics()
        self.reasons: list[str] = []
        chosen = settings(**({"repository": root, "drain_timeout": 1, "workers": 1} | changes))
        self.models = ModelRepository(chosen, self.metrics, Tracer(), self.reasons.append)

    async def top(self, name: str = "mine", key: str = "") -> float:
        """First probability that a model gives, different for every version."""
        return await top(self.models.classifier(name, key=key))

    def serving(self) -> list[str]:
        return sorted(str(served.reference) for served in self.models.served)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def settle(self) -> None:
        """Wait until whoever has to leave has left."""
        for _ in range(500):
            if not self.models.live.leaving:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("somebody does not leave")


async def top(lease: Lease[Any]) -> float:
    with lease:
        [outcome] = await lease.infer([curve(1.0)], InferOptions())
    assert outcome.prediction is not None
    return float(outcome.prediction.outputs["probabilities"][0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


@pytest.fixture
async def home(root: Path, tmp_path: Path) -> AsyncIterator[Home]:
    version(root, "1.0.0", 1.0)
    started = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path)
    await started.models.start()
    yield started
    await started.models.stop()


async def gone(parts: Sequence[weakref.ref[Any]]) -> None:
    """Wait until objects are gone, without a look of the garbage collector."""
    gc.disable()
    try:
        async with asyncio.timeout(20):
            while any(part() is not None for part in parts):
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_repository_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    home = Home(tmp_path / "misspelt", bundle=classifier_bundle(tmp_path / "default", name="first").path)
    with capture_logs() as logs:
        await home.models.start()
    await home.models.stop()
    warnings = [(line["setting"], line["path"]) for line in logs if line["log_level"] == "warning"]
    assert warnings == [("repository", str(tmp_path / "misspelt"))]


async def test_nothing_is_there_before_it_has_started(root: Path) -> None:
    home = Home(root)
    with pytest.raises(NotReady):
        home.models.classifier()


async def test_the_bundle_of_the_settings_stays_the_default(home: Home) -> None:
    assert home.models.default.reference == Reference("first", "0.0.1")
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    assert home.metric("nightjar_model_loads_total", outcome="loaded") == 1


async def test_a_new_version_takes_over_and_the_old_one_is_freed(home: Home, root: Path) -> None:
    before = await home.top()
    served = home.models.classifier("mine").served
    parts = [weakref.ref(part) for part in (served, served.engine, served.loaded.run)]
    del served
    version(root, "1.1.0", 2.0)
    assert await home.models.changes.sync() == [Reference("mine", "1.1.0")]
    assert await home.top() != before
    await home.settle()
    await gone(parts)
    assert home.serving() == ["first@0.0.1", "mine@1.1.0"]
    with pytest.raises(UnknownModel):
        home.models.classifier("mine@1.0.0")
    assert await home.models.changes.sync() == []


async def test_requests_under_way_keep_the_old_version(home: Home, root: Path) -> None:
    before = await home.top()
    lease = home.models.classifier("mine")
    with lease:
        version(root, "1.1.0", 2.0)
        await home.models.changes.sync()
        await asyncio.sleep(0.05)
        assert [str(served.reference) for served in home.models.live.leaving] == ["mine@1.0.0"]
        assert await top(lease) == before != await home.top()
    await home.settle()


@pytest.mark.parametrize(("damage", "reason"), [(corrupt, "sha256"), (lie, "golden outputs differ")])
async def test_a_bad_bundle_changes_nothing_and_is_told(home: Home, root: Path, damage: Any, reason: str) -> None:
    before = await home.top()
    path = version(root, "1.1.0", 2.0).path
    damage(path)
    assert await home.models.changes.sync() == []
    [failure] = home.models.failures
    assert reason in failure.reason
    assert await home.top() == before
    assert home.metric("nightjar_models_failing") == 1
    assert home.metric("nightjar_model_loads_total", outcome="failed") == 1
    await home.models.changes.sync()
    assert home.metric("nightjar_model_loads_total", outcome="failed") == 1, "the same files are not tried again"
    with pytest.raises(LoadFailed, match=reason):
        await home.models.changes.load(Reference("mine"))
    version(root, "1.1.0", 3.0)
    assert await home.models.changes.sync() == [Reference("mine", "1.1.0")]
    assert (list(home.models.failures), home.metric("nightjar_models_failing")) == ([], 0)


async def test_a_bundle_still_being_copied_is_taken_up_when_it_is_complete(home: Home, root: Path) -> None:
    source = version(root.parent / "elsewhere", "1.1.0", 2.0).path
    target = root / "mine" / "1.1.0"
    target.mkdir()
    for name in ("manifest.json", "golden.npz", "model.onnx"):
        shutil.copy(source / name, target / name)
        taken = await home.models.changes.sync()
    assert taken == [Reference("mine", "1.1.0")]
    assert list(home.models.failures) == []


async def test_a_bundle_replaced_in_its_place_is_taken_up(home: Home, root: Path) -> None:
    before = await home.top()
    version(root, "1.0.0", 5.0)
    assert await home.models.changes.sync() == [Reference("mine", "1.0.0")]
    assert await home.top() != before


async def test_a_bundle_that_vanishes_goes_on_being_served(home: Home, root: Path) -> None:
    before = await home.top()
    shutil.rmtree(root / "mine")
    assert await home.models.changes.sync() == []
    assert await home.top() == before


async def test_a_rollback_holds_until_something_newer_comes(home: Home, root: Path) -> None:
    before = await home.top()
    with pytest.raises(Refused, match="nothing answered for mine before 1\\.0\\.0"):
        await home.models.changes.rollback("mine")
    version(root, "1.1.0", 2.0)
    await home.models.changes.sync()
    assert await home.models.changes.rollback("mine") == Reference("mine", "1.0.0")
    assert await home.top() == before
    assert await home.models.changes.sync() == [], "what was left is not taken up again"
    version(root, "1.2.0", 3.0)
    assert await home.models.changes.sync() == [Reference("mine", "1.2.0")]
    version(root, "1.1.0", 4.0)
    assert await home.models.changes.sync() == [], "an older version does not take over"


async def test_a_rollback_to_what_is_gone_is_refused(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.changes.sync()
    version(root, "1.0.0", 9.0)  # not the bundle that answered before
    now = await home.top()
    with pytest.raises(Refused, match="not in its folder"):
        await home.models.changes.rollback("mine")
    assert await home.top() == now


async def test_an_older_version_is_served_under_its_exact_name(home: Home, root: Path) -> None:
    newest = await home.top()
    version(root, "0.9.0", 7.0)
    assert await home.models.changes.sync() == []
    await home.models.changes.load(Reference("mine", "0.9.0"))
    assert await home.top() == newest != await home.top("mine@0.9.0")
    await home.models.changes.unload(Reference("mine", "0.9.0"))
    with pytest.raises(UnknownModel):
        await home.top("mine@0.9.0")
    with pytest.raises(Refused):
        await home.models.changes.unload(Reference("mine", "1.0.0"))


async def test_unloading_holds_until_something_else_comes(home: Home, root: Path) -> None:
    await home.models.changes.unload(Reference("mine"))
    with pytest.raises(UnknownModel):
        home.models.classifier("mine")
    assert await home.models.changes.sync() == []
    with pytest.raises(Refused, match="default"):
        await home.models.changes.unload(Reference("first"))
    await home.models.changes.load(Reference("mine"))
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]


async def test_packets_of_ztf_may_have_a_bundle_of_their_own(root: Path, tmp_path: Path) -> None:
    version(root, "1.0.0", 1.0)
    bundles = {name: classifier_bundle(tmp_path / name, name=name).path for name in ("first", "nearby")}
    home = Home(root, bundle=bundles["first"], ztf_bundle=bundles["nearby"], aliases={"lsst": "mine"})
    await home.models.start()
    try:
        answering = {survey: home.models.classifier(survey=survey) for survey in ("ztf", "lsst", "elasticc", "")}
        names = {survey: lease.bundle.manifest.name for survey, lease in answering.items()}
        assert names == {"ztf": "nearby", "lsst": "mine", "elasticc": "first", "": "first"}
        assert home.models.default.reference.name == "first"
    finally:
        await home.models.stop()


async def test_aliases_pin_and_follow(home: Home, root: Path) -> None:
    old = await home.top()
    changes = home.models.changes
    await changes.set_alias("ztf", Reference("mine", "1.0.0"))
    await changes.set_alias("lsst", Reference("mine"))
    version(root, "1.1.0", 2.0)
    await changes.sync()
    assert await top(home.models.classifier(survey="ztf")) == old
    assert await top(home.models.classifier(survey="lsst")) == await home.top() != old
    assert home.models.classifier(survey="elasticc").bundle.manifest.name == "first"
    await changes.end_alias("ztf")
    assert home.models.classifier(survey="ztf").bundle.manifest.name == "first"
    with pytest.raises(UnknownModel):
        home.models.classifier("mine@1.0.0")
    with pytest.raises(Refused):
        await changes.end_alias("default")
    with pytest.raises(UnknownModel):
        await changes.set_alias("lsst", Reference("nobody"))
    with pytest.raises(Refused, match="name of a model"):
        await changes.set_alias("mine", Reference("first"))


async def test_a_forecaster_is_not_served(home: Home, root: Path) -> None:
    forecaster_bundle(root / "ruler", name="ruler", version="1.0.0")
    await home.models.changes.sync()
    with pytest.raises(UnknownModel):
        home.models.classifier("ruler")
    assert ["only classifiers are served" in failure.reason for failure in home.models.failures] == [True]


async def test_a_canary_answers_its_share_and_then_all(home: Home, root: Path) -> None:
    old = await home.top()
    version(root, "1.1.0", 2.0)
    changes = home.models.changes
    await home.models.trials.set_canary("mine", "1.1.0", 30.0)
    assert await changes.sync() == [], "the watch does not end a trial"
    keys = [f"object {i}" for i in range(200)]
    roles = [home.models.classifier("mine", key=key).role for key in keys]
    assert 30 < roles.count("canary") < 90
    for key, role in list(zip(keys, roles, strict=True))[:10]:
        assert (await home.top(key=key) == old) == (role == "")
    counted = [
        home.metric("nightjar_model_curves_total", model="mine", version=number, role=role)
        for number, role in (("1.0.0", "current"), ("1.1.0", "canary"))
    ]
    assert counted == [1 + roles[:10].count(""), roles[:10].count("canary")]
    version(root, "1.1.0", 4.0)
    assert await changes.sync() == [Reference("mine", "1.1.0")]
    assert [home.models.classifier("mine", key=key).role for key in keys] == roles, "another bundle, the same trial"
    assert await changes.load(Reference("mine", "1.1.0")) == Reference("mine", "1.1.0")
    assert {home.models.classifier("mine", key=key).role for key in keys} == {""}
    assert await home.top() != old
    with pytest.raises(UnknownModel):
        await home.models.trials.end_canary("mine")


async def test_a_canary_ends_with_the_old_version(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.trials.set_canary("mine", "1.1.0", 50.0)
    await home.models.trials.end_canary("mine")
    await home.settle()
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    with pytest.raises(Refused, match="already"):
        await home.models.trials.set_canary("mine", "1.0.0", 50.0)


async def test_several_models_answer_one_list_of_items(home: Home) -> None:
    first, mine = home.models.classifier(), home.models.classifier("mine")
    leases = [mine, first, mine]
    with held(leases):
        outcomes = await infer_many(leases, [curve(1.0), curve(1.0, length=5), curve(1.0)], InferOptions())
        assert (first.served.leases, mine.served.leases) == (1, 2)
    assert [outcome.status for outcome in outcomes] == ["classified"] * 3
    assert [outcome.points_per_band[2] for outcome in outcomes] == [10, 5, 10]
    assert (first.served.leases, mine.served.leases) == (0, 0)
    assert await infer_many([], [], InferOptions()) == []


async def test_an_alias_of_the_settings_has_to_lead_somewhere(root: Path, tmp_path: Path) -> None:
    version(root, "1.0.0")
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    home = Home(root, bundle=bundle, aliases={"default": "mine@1.0.0", "ztf": "first"})
    await home.models.start()
    assert str(home.models.default.reference) == "mine@1.0.0"
    assert home.models.classifier(survey="ztf").bundle.manifest.name == "first"
    await home.models.stop()
    lost = Home(root, bundle=bundle, aliases={"ztf": "mine@2.0.0"})
    with pytest.raises(BundleError, match="the alias ztf cannot lead to"):
        await lost.models.start()
    await lost.models.stop()


async def test_class_shares_of_the_settings_have_to_be_those_of_a_model(root: Path, tmp_path: Path) -> None:
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path, prior="typo")
    with pytest.raises(BundleError, match="NIGHTJAR_PRIOR: no model has 'typo'"):
        await home.models.start()
    await home.models.stop()


async def test_the_folder_is_watched(root: Path, tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    home = Home(root, bundle=bundle, repository_poll=0.05)
    await home.models.start()
    assert home.serving() == ["first@0.0.1"]
    version(root, "1.0.0")
    await asyncio.to_thread(wait_until, lambda: "mine@1.0.0" in home.serving())
    await home.models.stop()


async def test_the_one_bundle_of_the_settings_is_replaced_in_its_place(tmp_path: Path) -> None:
    """A deployment without a repository renames a new bundle over the old one."""
    place = classifier_bundle(tmp_path / "bundle", name="only", version="1.0.0").path
    home = Home(tmp_path / "nowhere", repository=None, bundle=place)
    await home.models.start()
    assert await home.models.changes.sync() == []
    shutil.rmtree(place)
    version(tmp_path / "made", "1.1.0", 2.0, name="only").path.rename(place)
    assert await home.models.changes.sync() == [Reference("only", "1.1.0")]
    assert str(home.models.default.reference) == "only@1.1.0"
    with pytest.raises(Refused, match="not in its folder"):
        await home.models.changes.rollback("only")
    await home.models.stop()


async def test_changes_at_the_same_time_come_one_after_the_other(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    version(root, "1.2.0", 3.0)
    changes = home.models.changes
    done = await asyncio.gather(
        changes.load(Reference("mine", "1.1.0")),
        changes.load(Reference("mine", "1.2.0")),
        changes.sync(),
        changes.rollback("mine"),
        changes.set_alias("ztf", Reference("mine", "1.2.0")),
    )
    assert done[3] == Reference("mine", "1.1.0")
    assert home.serving() == ["first@0.0.1", "mine@1.1.0", "mine@1.2.0"]
    assert await home.top() != await top(home.models.classifier(survey="ztf"))
