"""What a narrow line leaves out is named, with the cell that all its rows have."""

import pytest
import tabulate

from simulator.show.report.presentation import Column, Presentation, fitting, narrow_line

HEADERS = ["#", "re-\ncomp.", "fit\n%", "what is assumed"]
ROWS = [
    ["1", "none", ">99.9", "its peak"],
    ["10", "block 6", "", " the rate of a link,\nand its latency "],
    ["", "-", "\x1b[32mfits\x1b[0m", "±3 %\n"],
]


@pytest.mark.parametrize("left", [(), (0,), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]])
def test_a_table_on_a_terminal_is_as_tabulate_writes_it(
    rows: list[list[str]], left: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabulate, "MIN_PADDING", 0)
    sides = ["left" if column in left else "right" for column in range(4)]
    wanted = tabulate.tabulate(rows, headers=HEADERS, tablefmt="simple", disable_numparse=True, colalign=sides)
    assert Presentation().grid(HEADERS, rows, left) == wanted


def test_a_table_of_a_page_is_as_narrow_as_its_cells_and_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tabulate.MIN_PADDING
    page = Presentation(style="markdown")
    assert page.grid(["#"], [["1"]], ()).splitlines()[::2] == ["| # |", "| 1 |"]
    assert tabulate.MIN_PADDING == before > 0
    monkeypatch.setattr(tabulate, "tabulate", None)
    with pytest.raises(TypeError):
        page.grid(["#"], [["1"]], ())
    assert before == tabulate.MIN_PADDING


def test_what_all_rows_have_is_said_beside_the_name_of_its_column() -> None:
    columns = [
        Column(header="kept", cells=("1", "2")),
        Column(header="experts'\nexchange", cells=("deepep", "deepep"), is_text=True, spare=2),
        Column(header="memory\nGiB", cells=("70", "71"), spare=1),
        Column(header="verdict", cells=("\x1b[32mfits\x1b[0m", "\x1b[32mfits\x1b[0m"), spare=3),
    ]
    kept, gone = fitting(columns, 4)
    assert [column.header for column in kept] == ["kept"]
    assert list(narrow_line(gone)) == [
        "Too narrow for: experts' exchange (deepep in all), memory GiB, verdict (fits in all)."
    ]
    assert list(narrow_line([Column(header="one", cells=("row",))])) == ["Too narrow for: one."]
    assert not list(narrow_line([]))


def test_a_column_comes_back_into_room_that_a_wider_one_leaves() -> None:
    columns = [Column("a", ("1",)), Column("wide column", ("2",), spare=10), Column("b", ("3",), spare=20)]
    assert [column.header for column in fitting(columns, 4)[0]] == ["a", "b"]
    assert [column.header for column in fitting(columns, 14)[0]] == ["a", "wide column"]
