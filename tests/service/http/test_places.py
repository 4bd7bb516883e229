"""Places of connections when all are taken: the order in which they are given up."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.http.edge.turns import ConnectionPlaces, Crowd


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "pop"]), st.integers(0, 12)), max_size=60))
def test_the_longest_there_of_the_largest_neighbourhood_goes(steps: list[tuple[str, int]]) -> None:
    crowd, there = Crowd[int](), list[int]()  # numbers of the same remainder are neighbours
    for step, number in steps:
        if step == "add":
            crowd.add(number, str(number % 3))
            there += [number] if number not in there else []
        elif step == "discard":
            crowd.discard(number)
            there = [each for each in there if each != number]
        elif there:
            sizes = Counter(each % 3 for each in there)
            gone = crowd.pop()
            assert sizes[gone % 3] == max(sizes.values())
            assert gone == next(each for each in there if each % 3 == gone % 3)
            there.remove(gone)
        assert len(crowd) == len(there)


def test_lingering_connections_give_way_first_and_none_does_in_vain() -> None:
    places = ConnectionPlaces[str]()
    for name in ("idle", "other", "working", "lingering", "lost"):
        places.waits(name, "here")
    places.works("working")
    places.lingers("lingering", "there")
    places.lost("lost")
    assert places.give_way(4) == []
    assert places.give_way(0) == []
    assert places.give_way(2) == ["lingering", "idle"]
    assert places.ending == 2
    places.lost("idle")
    assert (places.ending, places.give_way(1)) == (1, ["other"])
