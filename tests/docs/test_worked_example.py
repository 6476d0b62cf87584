"""The worked example of docs/model.md says what the program says, and its expressions give what they claim."""

import pytest

from tests.docs.worked_example import COMMAND, UNITS, Example, Row, evaluate

ROWS = [row for _, rows in Example().tables() for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.term)
def test_expression_gives_the_figure(row: Row) -> None:
    last_digit = 10.0**-row.digits
    assert evaluate(row.expression) / UNITS[row.unit] == pytest.approx(row.value / UNITS[row.unit], abs=last_digit)


def test_the_command_is_the_layout() -> None:
    example = Example()
    given = COMMAND.replace("\\\n", "").split()
    options = dict(zip(given[2::2], given[3::2], strict=True))
    assert options == {
        "--model": example.model.name,
        "--hardware": example.scenario.hardware.name,
        "--nodes": str(example.scenario.nodes),
        "--tp": str(example.layout.tensor_parallel),
        "--pp": str(example.layout.pipeline_parallel),
        "--micro-batch-size": str(example.layout.micro_batch_size),
        "--global-batch-size": str(example.scenario.global_batch_size),
        "--seq-length": str(example.scenario.seq_length),
        "--precision": example.scenario.precision,
    }


def test_only_arithmetic_is_evaluated() -> None:
    assert evaluate("2 × (3 + 4) / 7 - 1") == 1.0
    with pytest.raises(ValueError, match="more than numbers"):
        evaluate("abs(1)")
