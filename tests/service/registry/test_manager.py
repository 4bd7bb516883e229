"""The model manager with real bundles, engines and folders."""

import asyncio
import gc
import shutil
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nightjar_alerts.core.items import Skipped
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.loader import ChangeRejected, LoadFailed
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.names import NotReady, Reference, UnknownModel
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from support.edge import settings, wait_until
from support.graph_bundles import classifier_bundle
from support.graphs import curve
from support.repository import corrupt, lie, version


class Home:
    """A model repository and its manager."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.metrics = Metrics()
        self.reasons: list[str] = []
        chosen = settings(**({"repository": root, "drain_timeout": 1, "workers": 1} | changes))
        self.models = ModelManager(chosen, self.metrics, self.reasons.append)

    async def top(self, name: str = "mine", key: str = "") -> float:
        """Return the first probability of a model's result, which differs between versions."""
        return await top(self.models.router.select(name, routing_key=key))

    def of_survey(self, survey: str) -> ModelHandle:
        """Return the model of a survey's alerts."""
        return self.models.router.route(Skipped("abstained", ""), survey=survey)[0]

    def serving(self) -> list[str]:
        return sorted(str(served.reference) for served in self.models.served)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def settle(self) -> None:
        """Wait until no model is draining."""
        for _ in range(500):
            if not self.models.draining:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("a model does not drain")


async def top(handle: ModelHandle) -> float:
    with acquired([handle]):
        [outcome] = await handle.infer([curve(1.0)], InferOptions())
    assert outcome.prediction is not None
    return float(outcome.prediction.outputs["probabilities"][0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "bundles"
    folder.mkdir()
    return folder


@pytest.fixture
async def home(root: Path, tmp_path: Path) -> AsyncIterator[Home]:
    version(root, "1.0.0", 1.0)
    started = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path)
    await started.models.start()
    yield started
    await started.models.stop()


async def gone(parts: Sequence[weakref.ref[Any]]) -> None:
    """Wait until objects are freed without the garbage collector."""
    gc.disable()
    try:
        async with asyncio.timeout(20):
            while any(part() is not None for part in parts):
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_select_before_start_raises_not_ready(root: Path) -> None:
    home = Home(root)
    with pytest.raises(NotReady):
        home.models.router.select()


async def test_start_bundle_of_settings_is_the_default(home: Home) -> None:
    assert home.models.default.reference == Reference("first", "0.0.1")
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    assert home.metric("nightjar_model_loads_total", outcome="loaded") == 1


async def test_reload_new_version_replaces_the_old_one_which_is_freed(home: Home, root: Path) -> None:
    before = await home.top()
    served = home.models.router.select("mine").model
    parts = [weakref.ref(part) for part in (served, served.engine, served.loaded.graph)]
    del served
    version(root, "1.1.0", 2.0)
    assert await home.models.reload() == [Reference("mine", "1.1.0")]
    assert await home.top() != before
    await home.settle()
    await gone(parts)
    assert home.serving() == ["first@0.0.1", "mine@1.1.0"]
    with pytest.raises(UnknownModel):
        home.models.router.select("mine@1.0.0")
    assert await home.models.reload() == []


async def test_reload_requests_in_progress_keep_the_old_version(home: Home, root: Path) -> None:
    before = await home.top()
    handle = home.models.router.select("mine")
    with acquired([handle]):
        version(root, "1.1.0", 2.0)
        await home.models.reload()
        await asyncio.sleep(0.05)
        assert [str(served.reference) for served in home.models.draining] == ["mine@1.0.0"]
        assert await top(handle) == before != await home.top()
    await home.settle()


@pytest.mark.parametrize(("damage", "reason"), [(corrupt, "sha256"), (lie, "golden outputs differ")])
async def test_reload_bad_bundle_changes_nothing(home: Home, root: Path, damage: Any, reason: str) -> None:
    before = await home.top()
    path = version(root, "1.1.0", 2.0).path
    damage(path)
    assert await home.models.reload() == []
    [failure] = home.models.failures
    assert reason in failure.reason
    assert await home.top() == before
    assert home.metric("nightjar_models_failing") == 1
    assert home.metric("nightjar_model_loads_total", outcome="failed") == 1
    await home.models.reload()
    assert home.metric("nightjar_model_loads_total", outcome="failed") == 1, "the same files are not tried again"
    with pytest.raises(LoadFailed, match=reason):
        await home.models.load(Reference("mine"))
    version(root, "1.1.0", 3.0)
    assert await home.models.reload() == [Reference("mine", "1.1.0")]
    assert (list(home.models.failures), home.metric("nightjar_models_failing")) == ([], 0)


async def test_reload_bundle_being_copied_is_loaded_once_complete(home: Home, root: Path) -> None:
    source = version(root.parent / "elsewhere", "1.1.0", 2.0).path
    target = root / "mine" / "1.1.0"
    target.mkdir()
    for name in ("manifest.json", "golden.npz", "model.onnx"):
        shutil.copy(source / name, target / name)
        taken = await home.models.reload()
    assert taken == [Reference("mine", "1.1.0")]
    assert list(home.models.failures) == []


async def test_reload_bundle_replaced_in_place_is_loaded(home: Home, root: Path) -> None:
    before = await home.top()
    version(root, "1.0.0", 5.0)
    assert await home.models.reload() == [Reference("mine", "1.0.0")]
    assert await home.top() != before


async def test_reload_deleted_bundle_stays_in_service(home: Home, root: Path) -> None:
    before = await home.top()
    shutil.rmtree(root / "mine")
    assert await home.models.reload() == []
    assert await home.top() == before


async def test_rollback_pins_the_older_version_until_another_is_loaded(home: Home, root: Path) -> None:
    before = await home.top()
    with pytest.raises(ChangeRejected, match=r"no version of mine older than 1\.0\.0"):
        await home.models.rollback("mine")
    version(root, "1.1.0", 2.0)
    await home.models.reload()
    assert await home.models.rollback("mine") == Reference("mine", "1.0.0")
    assert await home.top() == before
    version(root, "1.2.0", 3.0)
    assert await home.models.reload() == [], "the pin holds"
    assert await home.models.load(Reference("mine")) == Reference("mine", "1.2.0")
    assert home.models.pins == {}
    version(root, "1.3.0", 4.0)
    assert await home.models.reload() == [Reference("mine", "1.3.0")]
    version(root, "1.1.0", 5.0)
    assert await home.models.reload() == [], "an older version does not take over"


async def test_rollback_survives_a_restart(home: Home, root: Path, tmp_path: Path) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.reload()
    await home.models.rollback("mine")
    before = await home.top()
    again = Home(root, bundle=tmp_path / "default", aliases={"default": "mine"})
    await again.models.start()
    try:
        assert str(again.models.default.reference) == "mine@1.0.0"
        assert await again.top() == before
        assert await again.models.reload() == []
        await again.models.unpin("mine")
        assert await again.models.reload() == [Reference("mine", "1.1.0")]
    finally:
        await again.models.stop()
    assert await home.models.reload() == [Reference("mine", "1.1.0")], "a replica that shares the repository follows"


async def test_rollback_fresh_process_serves_next_older_that_loads(root: Path, tmp_path: Path) -> None:
    for number, factor in (("1.0.0", 1.0), ("1.1.0", 2.0), ("1.2.0", 3.0)):
        version(root, number, factor)
    corrupt(root / "mine" / "1.1.0")
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path)
    await home.models.start()
    try:
        assert home.serving() == ["first@0.0.1", "mine@1.2.0"]
        assert await home.models.rollback("mine") == Reference("mine", "1.0.0")
        with pytest.raises(ChangeRejected, match="older than"):
            await home.models.rollback("mine")
        assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    finally:
        await home.models.stop()


async def test_rollback_no_older_version_loads_is_rejected_with_the_reason(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.reload()
    version(root, "1.0.0", 9.0)
    corrupt(root / "mine" / "1.0.0")
    now = await home.top()
    with pytest.raises(LoadFailed, match="sha256"):
        await home.models.rollback("mine")
    assert (await home.top(), home.models.pins) == (now, {})


@pytest.mark.parametrize("change", ["rollback", "pin"])
async def test_pin_that_cannot_be_written_is_rejected_and_changes_nothing(home: Home, root: Path, change: str) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.reload()
    now, models = await home.top(), home.models
    (root / "pins.json").mkdir()  # a file cannot replace it, whoever the user is
    with pytest.raises(ChangeRejected, match=r"pins\.json"):
        await (models.rollback("mine") if change == "rollback" else models.pin(Reference("mine", "1.0.0")))
    await home.settle()
    assert (await home.top(), home.serving(), models.pins) == (now, ["first@0.0.1", "mine@1.1.0"], {})
    assert sorted(path.name for path in root.iterdir()) == ["mine", "pins.json"]


async def test_write_pins_to_a_full_or_read_only_repository_is_rejected(
    home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.reload()
    now = await home.top()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(ChangeRejected, match="No space left"):
        await home.models.rollback("mine")
    assert await home.top() == now
    assert [path.name for path in root.iterdir()] == ["mine"], "no partial file is left"


async def test_rollback_without_a_repository_is_rejected(tmp_path: Path) -> None:
    place = classifier_bundle(tmp_path / "bundle", name="only", version="1.0.0").path
    home = Home(tmp_path, repository=None, bundle=place)
    await home.models.start()
    with pytest.raises(ChangeRejected, match="NIGHTJAR_REPOSITORY"):
        await home.models.pin(Reference("only", "1.0.0"))
    await home.models.stop()


async def test_pin_missing_from_disk_serves_an_older_version_with_a_warning(root: Path, tmp_path: Path) -> None:
    for number, factor in (("1.0.0", 1.0), ("1.2.0", 3.0)):
        version(root, number, factor)
    (root / "pins.json").write_text('{"mine": "1.1.0"}')
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path)
    with capture_logs() as logs:
        await home.models.start()
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    assert [line["model"] for line in logs if line["event"] == "pinned version not served"] == ["mine@1.1.0"]
    await home.models.stop()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mine": "latest"}', '{"../mine": "1.0.0"}', '{"mine": 1}'])
async def test_start_unreadable_pins_end_with_an_error(root: Path, tmp_path: Path, text: str) -> None:
    version(root, "1.0.0")
    (root / "pins.json").write_text(text)
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path)
    with pytest.raises(BundleError, match=r"pins\.json of the model repository cannot be read"):
        await home.models.start()
    await home.models.stop()


async def test_start_newest_version_broken_serves_the_newest_that_loads(root: Path, tmp_path: Path) -> None:
    for number, factor in (("1.0.0", 1.0), ("1.1.0", 2.0), ("1.2.0", 3.0)):
        version(root, number, factor)
    graph = root / "mine" / "1.2.0" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:100])
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path, aliases={"default": "mine"})
    with capture_logs() as logs:
        await home.models.start()
    try:
        assert str(home.models.default.reference) == "mine@1.1.0"
        warnings = [line["model"] for line in logs if line["event"] == "model not loaded"]
        assert (warnings, [line["log_level"] for line in logs if "reason" in line]) == (["mine@1.2.0"], ["warning"])
        assert [str(failure.reference) for failure in home.models.failures] == ["mine@1.2.0"]
    finally:
        await home.models.stop()


async def test_reload_good_version_beside_a_broken_newer_one_is_served(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    version(root, "1.2.0", 3.0)
    corrupt(root / "mine" / "1.2.0")
    assert await home.models.reload() == [Reference("mine", "1.1.0")]
    assert await home.models.reload() == []
    version(root, "1.2.0", 3.0)
    assert await home.models.reload() == [Reference("mine", "1.2.0")]


async def test_load_older_version_is_served_under_its_exact_name(home: Home, root: Path) -> None:
    newest = await home.top()
    version(root, "0.9.0", 7.0)
    assert await home.models.reload() == []
    await home.models.load(Reference("mine", "0.9.0"))
    assert await home.top() == newest != await home.top("mine@0.9.0")
    await home.models.unload(Reference("mine", "0.9.0"))
    with pytest.raises(UnknownModel):
        await home.top("mine@0.9.0")
    with pytest.raises(ChangeRejected):
        await home.models.unload(Reference("mine", "1.0.0"))


async def test_unload_holds_until_loaded_again(home: Home, root: Path) -> None:
    await home.models.unload(Reference("mine"))
    with pytest.raises(UnknownModel):
        home.models.router.select("mine")
    assert await home.models.reload() == []
    with pytest.raises(ChangeRejected, match="default"):
        await home.models.unload(Reference("first"))
    await home.models.load(Reference("mine"))
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]


async def test_start_ztf_bundle_answers_ztf(root: Path, tmp_path: Path) -> None:
    version(root, "1.0.0", 1.0)
    bundles = {name: classifier_bundle(tmp_path / name, name=name).path for name in ("first", "nearby")}
    home = Home(root, bundle=bundles["first"], ztf_bundle=bundles["nearby"], aliases={"lsst": "mine"})
    await home.models.start()
    try:
        answering = {survey: home.of_survey(survey) for survey in ("ztf", "lsst", "elasticc", "")}
        names = {survey: handle.bundle.manifest.name for survey, handle in answering.items()}
        assert names == {"ztf": "nearby", "lsst": "mine", "elasticc": "first", "": "first"}
        assert home.models.default.reference.name == "first"
    finally:
        await home.models.stop()


async def test_set_alias_exact_version_stays_and_name_follows(home: Home, root: Path) -> None:
    old = await home.top()
    models = home.models
    await models.set_alias("ztf", Reference("mine", "1.0.0"))
    await models.set_alias("lsst", Reference("mine"))
    version(root, "1.1.0", 2.0)
    await models.reload()
    assert await top(home.of_survey("ztf")) == old
    assert await top(home.of_survey("lsst")) == await home.top() != old
    assert home.of_survey("elasticc").bundle.manifest.name == "first"
    await models.delete_alias("ztf")
    assert home.of_survey("ztf").bundle.manifest.name == "first"
    with pytest.raises(UnknownModel):
        home.models.router.select("mine@1.0.0")
    with pytest.raises(ChangeRejected):
        await models.delete_alias("default")
    with pytest.raises(UnknownModel):
        await models.set_alias("lsst", Reference("nobody"))
    with pytest.raises(ChangeRejected, match="name of a model"):
        await models.set_alias("mine", Reference("first"))


async def test_set_canary_serves_its_share_and_then_all(home: Home, root: Path) -> None:
    old = await home.top()
    version(root, "1.1.0", 2.0)
    models = home.models
    await home.models.set_canary("mine", "1.1.0", 30.0)
    assert await models.reload() == [], "the watch does not end a trial"
    keys = [f"object {i}" for i in range(200)]
    roles = [home.models.router.select("mine", routing_key=key).role for key in keys]
    assert 30 < roles.count("canary") < 90
    for key, role in list(zip(keys, roles, strict=True))[:10]:
        assert (await home.top(key=key) == old) == (role == "")
    counted = [
        home.metric("nightjar_model_curves_total", model="mine", version=number, role=role)
        for number, role in (("1.0.0", "current"), ("1.1.0", "canary"))
    ]
    assert counted == [1 + roles[:10].count(""), roles[:10].count("canary")]
    version(root, "1.1.0", 4.0)
    assert await models.reload() == [Reference("mine", "1.1.0")]
    assert [home.models.router.select("mine", routing_key=key).role for key in keys] == roles, (
        "another bundle, the same trial"
    )
    assert await models.load(Reference("mine", "1.1.0")) == Reference("mine", "1.1.0")
    assert {home.models.router.select("mine", routing_key=key).role for key in keys} == {""}
    assert await home.top() != old
    with pytest.raises(UnknownModel):
        await home.models.delete_canary("mine")


async def test_delete_canary_unloads_its_version(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    await home.models.set_canary("mine", "1.1.0", 50.0)
    await home.models.delete_canary("mine")
    await home.settle()
    assert home.serving() == ["first@0.0.1", "mine@1.0.0"]
    with pytest.raises(ChangeRejected, match="already"):
        await home.models.set_canary("mine", "1.0.0", 50.0)


async def test_infer_many_two_models_answers_in_order(home: Home) -> None:
    first, mine = home.models.router.select(), home.models.router.select("mine")
    handles = [mine, first, mine]
    with acquired(handles):
        outcomes = await infer_many(handles, [curve(1.0), curve(1.0, length=5), curve(1.0)], InferOptions())
        assert (first.model.requests, mine.model.requests) == (1, 1)
    assert [outcome.status for outcome in outcomes] == ["classified"] * 3
    assert [outcome.points_per_band[2] for outcome in outcomes] == [10, 5, 10]
    assert (first.model.requests, mine.model.requests) == (0, 0)
    assert await infer_many([], [], InferOptions()) == []


async def test_start_alias_to_nothing_ends_with_an_error(root: Path, tmp_path: Path) -> None:
    version(root, "1.0.0")
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    home = Home(root, bundle=bundle, aliases={"default": "mine@1.0.0", "ztf": "first"})
    await home.models.start()
    assert str(home.models.default.reference) == "mine@1.0.0"
    assert home.of_survey("ztf").bundle.manifest.name == "first"
    await home.models.stop()
    lost = Home(root, bundle=bundle, aliases={"ztf": "mine@2.0.0"})
    with pytest.raises(BundleError, match="the alias ztf cannot lead to"):
        await lost.models.start()
    await lost.models.stop()


async def test_start_unknown_prior_ends_with_an_error(root: Path, tmp_path: Path) -> None:
    home = Home(root, bundle=classifier_bundle(tmp_path / "default", name="first").path, prior="typo")
    with pytest.raises(BundleError, match="NIGHTJAR_PRIOR: no model has 'typo'"):
        await home.models.start()
    await home.models.stop()


async def test_watch_new_bundle_is_loaded(root: Path, tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    home = Home(root, bundle=bundle, repository_poll=0.05)
    await home.models.start()
    assert home.serving() == ["first@0.0.1"]
    version(root, "1.0.0")
    await asyncio.to_thread(wait_until, lambda: "mine@1.0.0" in home.serving())
    await home.models.stop()


async def test_reload_bundle_of_settings_replaced_in_place_is_loaded(tmp_path: Path) -> None:
    """A deployment without a repository renames a new bundle over the old one."""
    place = classifier_bundle(tmp_path / "bundle", name="only", version="1.0.0").path
    home = Home(tmp_path / "nowhere", repository=None, bundle=place)
    await home.models.start()
    assert await home.models.reload() == []
    shutil.rmtree(place)
    version(tmp_path / "made", "1.1.0", 2.0, name="only").path.rename(place)
    assert await home.models.reload() == [Reference("only", "1.1.0")]
    assert str(home.models.default.reference) == "only@1.1.0"
    with pytest.raises(ChangeRejected, match="older than"):
        await home.models.rollback("only")
    await home.models.stop()


async def test_changes_concurrent_are_serialized(home: Home, root: Path) -> None:
    version(root, "1.1.0", 2.0)
    version(root, "1.2.0", 3.0)
    models = home.models
    done = await asyncio.gather(
        models.load(Reference("mine", "1.1.0")),
        models.load(Reference("mine", "1.2.0")),
        models.reload(),
        models.rollback("mine"),
        models.set_alias("ztf", Reference("mine", "1.2.0")),
    )
    assert done[3] == Reference("mine", "1.1.0")
    assert home.serving() == ["first@0.0.1", "mine@1.1.0", "mine@1.2.0"]
    assert await home.top() != await top(home.of_survey("ztf"))
