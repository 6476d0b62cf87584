"""What a narrow line leaves out is named, with the cell that all its rows have."""

from simulator.show.report.presentation import Column, fitting, narrow_line


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
