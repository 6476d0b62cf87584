"""Progress counts what stands beside a ranking too: it never goes back, and ends with all of it."""

import pytest

import simulator


@pytest.mark.parametrize("model", ["llama3.2-1b", "qwen3-30b-a3b"])
def test_progress_of_a_ranking_ends_with_what_stands_beside_it(model: str) -> None:
    calls: list[tuple[int, int]] = []
    simulator.rank(
        model=model,
        hardware="h100-sxm-80g",
        nodes=1,
        tp=2,
        pp=1,
        top=1,
        progress=lambda done, total: calls.append((done, total)),
    )
    shares = [done / total for done, total in calls]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [share for share in shares if 0.5 < share < 1.0]
