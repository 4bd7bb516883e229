"""Recipes from files and settings, and back to TOML."""

from pathlib import Path

import pytest

from nightjar_alerts.models.networks.romae import RoMAEConfig
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.recipes.catalogue import RECIPES
from nightjar_alerts.training.recipes.resolve import RecipeError, as_toml, resolve


@pytest.mark.parametrize("name", RECIPES)
def test_as_toml_of_a_recipe_resolves_to_the_recipe(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(as_toml(RECIPES[name]()))
    assert resolve(str(tmp_path / "own.toml")) == RECIPES[name]()


def test_describe_prints_what_fit_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", "default", "--set", "optimizer.lr=2e-3", "--set", "seed=4"])
    (tmp_path / "own.toml").write_text(capsys.readouterr().out)
    described = resolve(str(tmp_path / "own.toml"))
    assert (described.optimizer.lr, described.seed, described.name) == (2e-3, 4, "default")


def test_resolve_a_file_that_extends_a_recipe_changes_its_fields(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text('extends = "astro-moe-pe"\n[optimizer]\nlr = 3e-5\n[network]\nd_model = 96\n')
    slow, base = (
        resolve(str(file), ["schedule.patience=null", "network.time_encoding=rotary"]),
        RECIPES["astro-moe-pe"](),
    )
    assert (slow.name, slow.optimizer.lr, slow.schedule.patience) == ("slow", 3e-5, None)
    assert slow.network.model_dump() == {**base.network.model_dump(), "d_model": 96, "time_encoding": "rotary"}
    assert slow.batch == base.batch


def test_resolve_another_architecture_replaces_the_network() -> None:
    recipe = resolve("default", ["network.architecture=romae", "network.flux_scale=2"])
    assert recipe.network == RoMAEConfig(flux_scale=2.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lr=1", "lr is not a field of a recipe; did you mean optimizer.lr"),
        ("optimiser.lr=1", "optimiser is not a field of a recipe; did you mean optimizer"),
        ("network.d_modell=1", "network.d_modell is not a field of a recipe; did you mean network.d_model"),
        ("optimizer.lr=fast", "optimizer.lr: Input should be a valid number, .* not 'fast'"),
        ("schedule.steps=1.5", "schedule.steps: .* integer"),
        ("seed=-1", "seed: .* greater than or equal to 0"),
        ("optimizer=3", "optimizer: .* dictionary"),
        ("batch", "write it as field=value"),
    ],
)
def test_resolve_a_wrong_setting_raises(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve("debug", [setting])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("extends = ", "is not TOML"),
        (f"x = {'[' * 3000}", "is not TOML"),
        ("extends = 3", "must be the name"),
        ('extends = "own.toml"', "must be the name of a shipped recipe, not 'own.toml'"),
        ('extends = "defualt"', "unknown recipe 'defualt'; did you mean default"),
        ('name = "x"', "schedule: Field required"),
        ('extends = "debug"\nsed = 3', "own.toml: sed is not a field of a recipe; did you mean seed"),
    ],
)
def test_resolve_a_wrong_file_raises(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(content)
    with pytest.raises(RecipeError, match=message):
        resolve(str(tmp_path / "own.toml"))
