"""What a narrow line leaves out is named, with the cell that all its rows have."""

from simulator.show.report.columns import Column, fitting, narrow_line


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
