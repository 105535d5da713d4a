import pytest

from stages.corpus.phrases import skill_phrasings
from tests.stages.corpus.phrases.checks import check_phrasings

PAIRS, LISTS = (
    ("ADDITION", "SUBTRACTION", "LARGER", "SMALLER"),
    ("ASCENDING", "DESCENDING", "COUNTING", "COPYING"),
)


@pytest.mark.parametrize("name", [*PAIRS, *LISTS])
def test_templates_have_their_slots_in_all_languages_and_splits(name: str) -> None:
    check_phrasings(getattr(skill_phrasings, name), {"a", "b"} if name in PAIRS else {"items"})
