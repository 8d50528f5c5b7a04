"""The numbers of docs/explanation/claims.md, computed."""

import pytest

from tailgauge_analysis.stats.quantiles import n_min, rank


@pytest.fixture(scope="module")
def claims(checkout) -> str:
    return (checkout / "docs" / "explanation" / "claims.md").read_text(encoding="utf-8")


CLAIMS = (
    ("comes out at 109 ms instead of 20", (1000 + 10 * 20) / 11, (108.5, 109.5)),
    ("For K = 100 that is 36.6%", 0.99**100, (0.3655, 0.3665)),
    ("the p50 at K = 69", 0.99**69, (0.499, 0.501)),
    ("hit rate of 47%, not 90%", 9000 / (1000 + 9000 + 9000), (0.465, 0.475)),
    ("hit rate of 47%, not 90%", 9000 / (1000 + 9000), (0.895, 0.905)),
    ("needs 299 independent requests", n_min(0.99), (299, 299)),
    ("the 99th of 100", rank(100, 0.99), (99, 99)),
    ("it takes the largest, the p100", int(100 * 0.99) + 1, (100, 100)),
    ("2.6 MB", 2 * 80 * 8192 * 2 / 1e6, (2.55, 2.65)),
    ("it is 320 KB", 2 * 80 * 8 * 128 * 2 / 1024, (320, 320)),
)


@pytest.mark.parametrize(("sentence", "value", "bounds"), CLAIMS)
def test_the_number_is_right_and_on_the_page(claims, sentence, value, bounds):
    assert sentence in claims
    assert bounds[0] <= value <= bounds[1]
