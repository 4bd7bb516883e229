import pickle

import pytest

from nightjar_alerts.alerts.packet import AbstainReason, Packet, PacketError, RejectReason


def test_reasons_are_labels_and_no_two_are_alike() -> None:
    reasons = [reason.value for reason in (*AbstainReason, *RejectReason)]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.replace("_", "").isalpha() and reason.islower() for reason in reasons)


@pytest.mark.parametrize("survey", [None, "lsst"])
def test_errors_cross_process_borders(survey: None) -> None:
    error = pickle.loads(pickle.dumps(PacketError(RejectReason.TRUNCATED_AVRO, "cut short", survey)))
    assert (error.reason, error.detail, error.survey, str(error)) == (
        "truncated_avro",
        "cut short",
        survey,
        "cut short",
    )


def test_packets_cross_process_borders() -> None:
    packet = Packet("ztf", "4.02", "1", "ZTF1", None, AbstainReason.NO_USABLE_POINTS, "none")
    assert pickle.loads(pickle.dumps(packet)) == packet
