"""Times as text and back."""

from __future__ import annotations

import re
import time

import pytest

from stages.contract.clock import utc_now, utc_seconds, utc_text


@pytest.mark.parametrize("seconds", [0.0, 1.5, 1_700_000_000.123456, 1_700_000_000.999999])
def test_a_time_comes_back_from_its_text(seconds: float) -> None:
    assert utc_seconds(utc_text(seconds)) == pytest.approx(seconds, abs=2e-6)


def test_now_is_now_with_six_decimals_and_z() -> None:
    text = utc_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert abs(utc_seconds(text) - time.time()) < 5


def test_other_text_is_no_time() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        utc_seconds("yesterday")
