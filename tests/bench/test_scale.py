"""The line through the sizes is the line that they lie on, and the page keeps what stands around its table."""

import importlib

import pytest


def size(workers, kind="", core=None):
    import scale

    return scale.Size(
        workers, kind, 0.01 + 0.002 * workers if core is None else core, 4.0 * workers, 5e3 * workers, 2.0 * workers, 1e3 * workers,
        100 * scale.MIB + workers * scale.MIB, 1.0, 1.0, 0.01 * workers, 0.5, 0,
    )  # fmt: skip


def test_what_lies_on_a_line_is_drawn_on_exactly():
    import scale

    lines = " ".join(
        scale.far(
            [
                size(2),
                size(8),
                size(32),
                size(32, scale.AT_THE_PACE, 0.026),
                size(32, scale.ONE_FOLDER, 0.042),
            ]
        )
    )

    assert "costs 0.20% of the master's core, 6.0 messages/s, 6.0 kB/s and 1.00 MiB" in lines
    assert "A message costs 333 us" in lines
    assert "10% of a core is reached at 45 workers; at 200 it is 41%" in lines
    assert (
        "At the pace of 1,000 workers each costs 0.050%: together 51% of a core, 6,000 messages/s, 6.0 MB/s, 1,100 MiB"
        in lines
    )
    assert "Receiving parts is 50% of what a worker costs." in lines


def test_one_size_is_no_line():
    import scale

    assert scale.far([size(2)]) == []
    assert "| 2 | 1.4% | 8 | 10.0 | 102 | 0.5 | 0 |" in scale.table([size(2)])


@pytest.mark.parametrize("name", ["scale", "tables"])
def test_the_table_goes_between_its_marks(name, tmp_path, monkeypatch):
    module = importlib.import_module(name)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    monkeypatch.setattr(module, "PAGE", page)

    module.write("new\n")

    assert page.read_text().replace("\n\n", "\n") == (
        f"before\n{module.BEGIN}\nnew\n{module.END}\nafter\n"
    )


def test_a_page_without_marks_is_left_alone(tmp_path, monkeypatch):
    import scale

    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    monkeypatch.setattr(scale, "PAGE", page)

    with pytest.raises(SystemExit, match="are not there"):
        scale.write("new")
    assert page.read_text() == "nothing here\n"
