"""Parameters of all trees that training fits: LightGBM's and scikit-learn's, each under the name of its use."""

from collections.abc import Mapping
from typing import Any, Final

_REPRODUCIBLE: Final[Mapping[str, Any]] = {
    "objective": "multiclass", "max_bin": 63, "num_threads": 1, "verbosity": -1, "deterministic": True,
    "force_col_wise": True,
}  # fmt: skip

SURVEYS: Final[Mapping[str, Any]] = {
    **_REPRODUCIBLE, "learning_rate": 0.08, "num_leaves": 24, "max_depth": 8, "min_data_in_leaf": 60,
    "feature_fraction": 0.15, "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 2.0,
}  # fmt: skip
"""LightGBM inside the bundles of 20 classes; also the defaults of `forest.fit_forest`."""
SURVEYS_ROUNDS: Final = 140

ZTF_TYPES: Final[Mapping[str, Any]] = {
    **_REPRODUCIBLE, "learning_rate": 0.06, "num_leaves": 15, "min_data_in_leaf": 12, "feature_fraction": 0.2,
    "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 3.0,
}  # fmt: skip
"""LightGBM alone on ZTF's six types, for comparison."""
ZTF_TYPES_ROUNDS: Final = 120

REGULAR: Final[Mapping[str, Any]] = {
    "min_data_in_leaf": 30, "feature_fraction": 0.1, "learning_rate": 0.04, "num_leaves": 10, "lambda_l2": 10.0,
}  # fmt: skip
"""Changes for more regular trees, which the bundle of ZTF's six types holds."""
REGULAR_ROUNDS: Final = 160

HAND_MADE: Final[Mapping[str, Any]] = {
    "objective": "multiclass", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 10,
    "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0,
    "num_threads": 1, "verbosity": -1, "deterministic": True, "force_col_wise": True,
}  # fmt: skip
"""LightGBM on hand-made features, which fine-tuned models are compared with (`finetuning.opponent`)."""
HAND_MADE_ROUNDS: Final = tuple(range(20, 401, 20))

PATTERN: Final[Mapping[str, Any]] = {
    **_REPRODUCIBLE, "learning_rate": 0.1, "num_leaves": 24, "min_data_in_leaf": 30, "lambda_l2": 2.0, "seed": 0,
}  # fmt: skip
"""LightGBM on the pattern of observations alone (`score.incomplete`)."""

BASELINE_BOOSTED: Final[Mapping[str, Any]] = {
    "max_iter": 200, "learning_rate": 0.1, "l2_regularization": 1.0, "early_stopping": True, "n_iter_no_change": 10,
}  # fmt: skip
"""scikit-learn's boosting of `makers baseline`; usually it stops before 200 trees per class."""
BASELINE_FOREST: Final[Mapping[str, Any]] = {"n_estimators": 300, "min_samples_leaf": 5, "n_jobs": -1}
"""The random forest of `makers baseline`; with leaves of one object, probabilities would be 0 or 1."""

FOLDS_BOOSTED: Final[Mapping[str, Any]] = {
    "max_iter": 200, "learning_rate": 0.05, "l2_regularization": 1.0, "max_leaf_nodes": 15, "early_stopping": False,
    "class_weight": "balanced",
}  # fmt: skip
"""scikit-learn's boosting of `makers crossvalidate`."""
FOLDS_FOREST: Final[Mapping[str, Any]] = {
    "n_estimators": 400, "min_samples_leaf": 3, "n_jobs": -1, "class_weight": "balanced_subsample",
}  # fmt: skip
"""The random forest of `makers crossvalidate`."""
