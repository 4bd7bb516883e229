"""Histories cut at each alert."""

import numpy as np
import pytest

from nightjar_alerts.training.data.dataset import LabelledObject
from nightjar_alerts.training.simulate.population_report import alert, alert_rows, alerts


def source() -> LabelledObject:
    mjd = np.array([100.0, 110.0, 110.02, 110.5, 112.0, 120.0, 130.0])
    n = len(mjd)
    return LabelledObject(
        object_id="1",
        class_name="Ia",
        mjd=mjd,
        flux=np.arange(n, dtype=np.float32),
        flux_err=np.ones(n, dtype=np.float32),
        band=np.zeros(n, dtype=np.int8),
        detected=np.array([False, True, False, True, False, True, True]),
        trigger_mjd=110.0,
        metadata=np.full(64, np.nan, dtype=np.float32),
        redshift=0.1,
    )


def test_there_is_one_alert_for_each_detection_and_the_last_holds_everything() -> None:
    alerts_sent = list(alerts(source()))
    assert [a.mjd[-1] for a in alerts_sent] == [110.0, 110.5, 120.0, 130.0]
    assert len(alerts_sent[-1].mjd) == len(source().mjd)
    assert {a.trigger_mjd for a in alerts_sent} == {110.0}


def test_forced_photometry_joins_when_the_object_is_a_day_old() -> None:
    assert alert(source(), 1).mjd.tolist() == [110.0]
    assert alert(source(), 3).mjd.tolist() == [110.0, 110.5]
    assert alert(source(), 5).flux.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_visit_that_saw_nothing_makes_no_alert() -> None:
    with pytest.raises(ValueError, match="no detection at point 2"):
        alert(source(), 2)


def test_rows_know_only_the_past() -> None:
    rows = alert_rows(source().mjd, source().detected, 5)
    np.testing.assert_array_equal(rows, np.arange(6))
